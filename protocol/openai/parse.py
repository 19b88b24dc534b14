"""From a body's bytes to a request, as OpenAI's API reads JSON."""

import codecs
import json
import math
from collections.abc import Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from pydantic import ValidationError

from pagelet.protocol.openai.errors import ApiError, describe
from pagelet.protocol.openai.fields import RequestBody
from pagelet.protocol.openai.http_body import outside_of_strings

Body = TypeVar("Body", bound=RequestBody)

_MANY_ERRORS: Final = 1000
"""Errors of one body that are still worth spelling out, which costs memory for each."""
_MOST_ROUNDS: Final = 8
"""Places of a body in which fields that ask for nothing are left out, one after the other."""
_SHAPES: Final = bytes.maketrans(b"123456789E", b"000000000e")
_NO_NUMBERS: Final = (b"NaN", b"Infinity", b"0e000", b"0e+000", b"0" * 200)
"""By its `_SHAPES`, one of them is in every body with a number that is none, or none that a float
can be. A regular expression takes ten times as long, and msgspec microseconds for such a number."""


def without_mark(data: bytes) -> bytes:
    """A body without the mark of UTF-8 that some clients begin with (RFC 8259, 8.1)."""
    return data.removeprefix(codecs.BOM_UTF8)


def parse(data: bytes, model: type[Body]) -> Body:
    """A field that the API does not have asks for nothing where it is null. Raises `ApiError`."""
    data = _known(without_mark(data), model)
    rounds_left = _MOST_ROUNDS
    while True:
        try:
            body = model.model_validate_json(data)
            break
        except ValidationError as error:
            if error.error_count() > _MANY_ERRORS:
                message = f"The body of the request has {error.error_count()} errors."
                raise ApiError(400, message, reason="invalid") from None
            found = error.errors(include_url=False)
            idle = [each["loc"] for each in found if _asks_nothing(each)]
            rounds_left -= 1
            if not (idle and rounds_left):
                raise _api_error(found[0]) from None
            data = _without(data, idle)
    _check_numbers(data)
    return body


def _known(data: bytes, model: type[RequestBody]) -> bytes:
    """Refuses the first name that the API does not have. Pydantic would make an error of every
    one, which for a body full of them takes seconds of the event loop."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return data  # no JSON object, or nested without end: pydantic says what is wrong
    unknown = [name for name in fields if name not in model.model_fields]
    for name in unknown:
        if bytes(fields.pop(name)) != b"null":
            raise _api_error({"type": "extra_forbidden", "loc": (name,), "msg": ""})
    return msgspec.json.encode(fields) if unknown else data


def _asks_nothing(error: Any) -> bool:
    return error["type"] == "extra_forbidden" and error["input"] is None


def _without(data: bytes, places: Sequence[tuple[int | str, ...]]) -> bytes:
    """Leaves fields that are null out, here and in the other items of their lists."""
    document = json.loads(data)
    for *path, name in places:
        nodes = [document]
        for part in path:
            if isinstance(part, int):
                nodes = [item for node in nodes if isinstance(node, list) for item in node]
            elif any(isinstance(node, dict) and part in node for node in nodes):
                nodes = [node[part] for node in nodes if isinstance(node, dict) and part in node]
            # Else it is a name of pydantic's for one of several types.
        for node in nodes:
            if isinstance(node, dict) and node.get(str(name), name) is None:
                del node[name]
    return json.dumps(document).encode()


def _check_numbers(data: bytes) -> None:
    """Refuses what pydantic takes, in fields of any type, and JSON does not have."""
    if not (_may_have_no_numbers(data) and _may_have_no_numbers(outside_of_strings(data))):
        return
    try:
        json.loads(data, parse_constant=_no_number, parse_float=_finite)
    except ValueError as error:
        finding = {"type": "json_invalid", "loc": (), "msg": "", "ctx": {"error": str(error)}}
        raise _api_error(finding) from None


def _may_have_no_numbers(data: bytes) -> bool:
    shape = data.translate(_SHAPES)
    return any(each in shape for each in _NO_NUMBERS)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _finite(digits: str) -> None:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits[:64]} is no number of 64 bits")


def _api_error(finding: Any) -> ApiError:
    detail = describe(finding)
    return ApiError(400, detail.message, param=detail.param, code=detail.code, reason="invalid")
