"""What all request bodies share: strict types, and fields that are known but not served.

Types are strict, as in OpenAI's API: "5" or true is no integer. Ranges that the engine cares about
are checked by `pagelet.engine`'s processor, which offline callers pass too; here a value has only
to be finite and to fit 64 bits.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Timeout = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
"""Seconds in which an answer must be whole, of all that it asks for; else it is an error."""
TokenId = Annotated[int, Field(ge=0, le=2**32 - 1)]


class RequestBody(BaseModel):
    """A JSON body; a field that it does not know is an error that names the field."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class ResponseBody(BaseModel):
    """A JSON answer."""

    model_config = ConfigDict(protected_namespaces=())


def invalid(param: str, message: str, code: str = "invalid_value") -> PydanticCustomError:
    """An error about `param`, for validators that look at several fields together."""
    # The message goes in as a value: as a template, braces in it would be read as fields.
    context = {"param": param, "message": message}
    return PydanticCustomError(code, "{message}", context)


def _only(neutral: Sequence[object], remedy: str, value: object) -> object:
    if any(type(value) is type(known) and value == known for known in neutral):
        return value
    raise PydanticCustomError(
        "unsupported_parameter", "{message}", {"message": f"is not supported here; {remedy}"}
    )


def unsupported(*neutral: object, remedy: str = "leave it out") -> AfterValidator:
    """Marks a field that is known but not served: only None and `neutral` values, which ask for
    nothing, pass."""
    values = (None, *neutral)
    return AfterValidator(lambda value: _only(values, remedy, value))


def null_means(default: object) -> BeforeValidator:
    """For a field whose default is not None: null asks for nothing, as anywhere else."""
    return BeforeValidator(lambda value: default if value is None else value)


_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
}


def one_of(*kinds: type) -> BeforeValidator:
    """Refuses JSON of any other kind, in one sentence: a union would have one for each branch."""
    *others, last = (_JSON_NAMES[kind] for kind in kinds)
    listed = f"{', '.join(others)} or {last}"

    def check(value: object) -> object:
        if value is None or isinstance(value, kinds):
            return value
        raise PydanticCustomError("invalid_type", "{message}", {"message": f"must be {listed}"})

    return BeforeValidator(check)


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


StringOrStrings = Annotated[
    list[str], Field(fail_fast=True), BeforeValidator(_listed), one_of(str, list)
]
SchemaOrText = Annotated[dict[str, Any] | str | bool, one_of(dict, str, bool)]
Schema = Annotated[dict[str, Any] | bool, one_of(dict, bool)]
"""A JSON schema."""


_MOST_LABELS = 16
_LABEL_NAME = 64
_LABEL = 512
"""Bounds of OpenAI's on metadata; the last two in characters."""


def _within_bounds(labels: dict[str, str]) -> dict[str, str]:
    found = ""
    if len(labels) > _MOST_LABELS:
        found = f"has {len(labels)} keys; at most {_MOST_LABELS} are taken"
    for name, value in labels.items():
        if len(name) > _LABEL_NAME:
            found = f"has a key of {len(name)} characters; at most {_LABEL_NAME} are taken"
        elif len(value) > _LABEL:
            found = f"has a value of {len(value)} characters; at most {_LABEL} are taken"
    if found:
        raise PydanticCustomError("invalid_value", "{message}", {"message": found})
    return labels


Metadata = Annotated[dict[str, str], AfterValidator(_within_bounds)]
"""Labels of a client's own."""
