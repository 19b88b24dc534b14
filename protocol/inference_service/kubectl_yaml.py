"""YAML as kubectl reads it: values are what its conversion to JSON makes of them, so that a file
means the same on one machine and in a cluster.

That is YAML 1.1 with exceptions. `010`, `0o10` and `0b1000` are 8, `1_000` is 1000, `1e3` and `1.0`
are whole numbers, `08` is 8; `yes`, `on`, `y` and their kin are true and false; but `1:30` and
`2026-11-30` are text. A test asks the real kubectl.
"""

import math
import re
from typing import Final

import yaml

_TAG: Final = "tag:yaml.org,2002:"
_CONSTANTS: Final[dict[str, tuple[str, bool | float | None]]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), ("null", None)),
    **{
        spelling: ("bool", value)
        for value, words in ((True, "y yes true on"), (False, "n no false off"))
        for word in words.split()
        for spelling in (word, word.capitalize(), word.upper())
    },
    **dict.fromkeys((".nan", ".NaN", ".NAN"), ("float", math.nan)),
    **{
        sign + spelling: ("float", value)
        for sign, value in (("", math.inf), ("+", math.inf), ("-", -math.inf))
        for spelling in (".inf", ".Inf", ".INF")
    },
}
_INT: Final = re.compile(r"([-+]?)(?:0([xXbBoO]?)([0-9a-fA-F]+)|([1-9][0-9]*|0))")
_DIGITS: Final = {"": "01234567", "o": "01234567", "b": "01", "x": "0123456789abcdef"}
_BASES: Final = {"": 8, "o": 8, "b": 2, "x": 16}
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
MOST_NODES: Final = 100_000
"""Of a text, keys among them: more take seconds to read."""

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TooManyNodes(Exception):
    """A text is larger than anything that is meant."""


def resolve(text: str) -> tuple[str, str | bool | float | None]:
    """The kind of an unquoted value (`int`, `float`, `bool`, `null`, `str`), and the value."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return "str", text
    plain = text if text[0] == "." else text.replace("_", "")
    if (number := _int(plain)) is not None:
        return "int", number
    if _FLOAT.fullmatch(plain) and math.isfinite(value := float(plain)):
        # JSON has one kind of numbers, and the API server takes whole ones for integers.
        return ("int", int(value)) if _is_whole(value) else ("float", value)
    return "str", text


def _is_whole(value: float) -> bool:
    return value.is_integer() and -(2.0**63) <= value < 2.0**63


def _int(text: str) -> int | None:
    match = _INT.fullmatch(text)
    if match is None:
        return None
    sign, prefix, digits, decimal = match.groups()
    if decimal is None:
        base = prefix.lower()
        if not set(digits.lower()) <= set(_DIGITS[base]):
            return None
        number = int(digits, _BASES[base])
    else:
        number = int(decimal)  # ValueError for more digits than any number has
    return -number if sign == "-" else number


class KubectlLoader(Loader):  # type: ignore[misc,valid-type]
    """Composes and constructs. Raises yaml.YAMLError, and TooManyNodes."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = 0

    def resolve(
        self, kind: type[yaml.Node], value: str | None, implicit: tuple[bool, bool] | bool
    ) -> str:
        """The tag of a node that has none."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise TooManyNodes
        if kind is yaml.ScalarNode:
            assert value is not None
            if not (isinstance(implicit, tuple) and implicit[0]):
                return f"{_TAG}str"
            if value == "<<":
                return f"{_TAG}merge"
            try:
                return _TAG + resolve(value)[0]
            except ValueError:
                return f"{_TAG}int"
        return f"{_TAG}map" if kind is yaml.MappingNode else f"{_TAG}seq"

    def construct_value(self, node: yaml.ScalarNode) -> str | bool | float | None:
        """Of a scalar of one of the kinds of `resolve`, by its tag or as written before it."""
        kind, value = resolve(str(self.construct_scalar(node)))
        wanted = node.tag.removeprefix(_TAG)
        if kind == wanted:
            return value
        if (kind, wanted) == ("int", "float"):
            return value
        raise ValueError


for _kind in ("null", "bool", "int", "float"):
    KubectlLoader.add_constructor(_TAG + _kind, KubectlLoader.construct_value)
