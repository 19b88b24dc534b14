"""Checks a value against a structural schema, and says all that is wrong at once."""

import dataclasses
import difflib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pagelet.protocol.inference_service.parts import QUANTITY_PATTERN
from pagelet.protocol.inference_service.schema import Schema

Path = tuple[str | int, ...]

_KINDS: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    "object": (dict, "a mapping"),
    "array": (list, "a list"),
    "string": (str, "a string"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": (bool, "true or false"),
    "int or string": ((int, str), "a whole number or a string"),
}
_LONGEST_VALUE: Final = 60
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
"""What no argument of a command can hold."""
_UNQUOTED: Final = re.compile(r"[+-]?\d+(\.\d+)?|true|false")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and what would be right."""

    path: Path
    words: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.words}" if self.path else self.words


def dotted(path: Path) -> str:
    """`spec.engine.maxNumSeqs`, `spec.model.servedNames[0]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            # What cannot be seen, such as a no-break space for an indent, is written out.
            name = step if step.isprintable() else ascii(step)
            text += f".{name}" if text else name
    return text


def validate(value: Any, schema: Schema, path: Path) -> Iterator[Problem]:
    """All problems of a value. A null counts as left out, as the API server has it."""
    int_or_string = schema.get("x-kubernetes-int-or-string")
    kind = "int or string" if int_or_string else schema["type"]
    accepted, wanted = _KINDS[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "boolean"):
        yield Problem(path, f"is {_shown(value)}; it takes {wanted}{_quoting(value, kind)}")
        return
    if "enum" in schema and value not in schema["enum"]:
        options = [str(option) for option in schema["enum"]]
        yield Problem(
            path, f"is {_shown(value)}; it takes {_one_of(options)}{_near(value, options)}"
        )
    elif isinstance(value, dict):
        yield from _validate_object(value, schema, path)
    elif isinstance(value, list):
        yield from _validate_list(value, schema, path)
    elif isinstance(value, str):
        yield from _validate_string(value, schema, path)
    elif isinstance(value, int | float):
        yield from _validate_number(value, schema, path)


def _validate_object(value: dict[Any, Any], schema: Schema, path: Path) -> Iterator[Problem]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield Problem((*path, name), "is missing")
    for name, item in value.items():
        if not isinstance(name, str):
            yield Problem(path, f"has the field {_shown(name)}; put its name into quotes")
        elif name in properties:
            if item is not None:
                yield from validate(item, properties[name], (*path, name))
        elif "additionalProperties" in schema:
            yield from validate(item, schema["additionalProperties"], (*path, name))
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            names = list(properties)
            hint = _near(name, names) or f"; there are {', '.join(names)}"
            yield Problem((*path, name), f"there is no such field{hint}")


def _validate_list(value: list[Any], schema: Schema, path: Path) -> Iterator[Problem]:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if least is not None and len(value) < least:
        yield Problem(path, f"has {len(value)} entries; it takes at least {least}")
    if most is not None and len(value) > most:
        yield Problem(path, f"has {len(value)} entries; it takes at most {most}")
    for index, item in enumerate(value):
        yield from validate(item, schema["items"], (*path, index))


def _validate_string(value: str, schema: Schema, path: Path) -> Iterator[Problem]:
    least, most = schema.get("minLength"), schema.get("maxLength")
    pattern = schema.get("pattern")
    if least is not None and len(value) < least:
        yield Problem(path, "is empty; leave it out, or write a value")
    elif most is not None and len(value) > most:
        yield Problem(path, f"has {len(value)} characters; it takes at most {most}")
    elif _NO_TEXT.search(value):
        yield Problem(
            path, f"is {value[:_LONGEST_VALUE]!a}; U+0000 and surrogates may not stand in it"
        )
    elif pattern is not None and not re.search(pattern, value):
        yield Problem(path, f"is {_shown(value)}; it takes {_form(pattern)}")


def _validate_number(value: float, schema: Schema, path: Path) -> Iterator[Problem]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"is {value}; it takes a finite number")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:  # as in the API server
        yield Problem(path, f"is {_shown(value)}; it takes a number of at most 64 bits")
    elif least is not None and (value < least or (value == least and "exclusiveMinimum" in schema)):
        words = "more than" if "exclusiveMinimum" in schema else "at least"
        yield Problem(path, f"is {value}; it takes {words} {least}")
    elif most is not None and (value > most or (value == most and "exclusiveMaximum" in schema)):
        words = "less than" if "exclusiveMaximum" in schema else "at most"
        yield Problem(path, f"is {value}; it takes {words} {most}")


def _form(pattern: str) -> str:
    quantity = "a quantity, such as 4, 500m or 8Gi"
    return quantity if pattern == QUANTITY_PATTERN else f"the form {pattern}"


def _shown(value: Any) -> str:
    """A value in YAML's words, not too long."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return _KINDS["object" if isinstance(value, dict) else "array"][1]
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def _quoting(value: Any, kind: str) -> str:
    if kind in ("string", "int or string") and isinstance(value, bool | int | float):
        return "; put it into quotes"
    if kind in ("integer", "number", "boolean") and isinstance(value, str):
        return ", without quotes" if _UNQUOTED.fullmatch(value) else ""
    return ""


def _one_of(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"


def _near(value: Any, options: list[str]) -> str:
    by_spelling = {option.lower().replace("_", ""): option for option in options}
    spelling = str(value).lower().replace("_", "").replace("-", "")
    close = difflib.get_close_matches(spelling, by_spelling, n=1)
    return f"; did you mean {by_spelling[close[0]]}?" if close else ""
