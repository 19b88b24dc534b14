"""Which library enforces a JSON schema, and what neither of them can.

A keyword that would be ignored is refused by its name: an answer that parses but does not validate
is worse than a 400. Annotations, and names that JSON Schema does not know, constrain nothing.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.structured import Grammar, GrammarBackend

WHITESPACE: Final = r"\n {0,24}| ?"
"""Between JSON's tokens: at most one space, or one line break with indentation. Without a bound a
model can write blanks for ever (vllm-project/vllm#13260)."""

MAX_DEPTH: Final = 64
"""Levels of subschemas."""

_UNSUPPORTED: Final = frozenset(
    {
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
        *("$dynamicRef", "$recursiveRef"),
    }
)
_OF_ONE: Final = ("additionalProperties", "additionalItems", "items")
_OF_MANY: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_OF_NAMES: Final = ("properties", "patternProperties", "$defs", "definitions")
_LLGUIDANCE_FORMATS: Final = frozenset(
    {
        *("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri"),
        *("uuid", "unknown"),
    }
)
_XGRAMMAR_FORMATS: Final = frozenset({"json-pointer"})
_ANNOTATION_FORMATS: Final = frozenset(
    {"int32", "int64", "float", "double", "binary", "byte", "password"}
)
"""OpenAPI's, which say how a value is held and not what it may be."""
_XGRAMMAR_KEYWORDS: Final = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "enum", "const"),
        *("anyOf", "$ref", "minProperties", "maxProperties", "format", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern"),
    }
)
_INTEGER_LIMITS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
"""xgrammar has them for integers only."""
_LLGUIDANCE_KEYWORDS: Final = _XGRAMMAR_KEYWORDS | {
    *("patternProperties", "prefixItems", "additionalItems", "oneOf", "allOf", "multipleOf"),
    *_INTEGER_LIMITS,
}

_COUNTS: Final = tuple(
    f"{bound}{what}" for bound in ("min", "max") for what in ("Items", "Length", "Properties")
)
_REACH: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(_INTEGER_LIMITS, (1 - 10**18, 10**18 - 1)),
    **dict.fromkeys(_COUNTS, (-1, 2**32 - 1)),
}
"""How far llguidance can tell numbers apart that a keyword bounds: 18 digits, and 32 bits."""

_NAMES: Final = ("a list of strings", lambda value: _is_list(value, str))
_NUMBER: Final = ("a number", lambda value: _is_number(value))
_COUNT: Final = (
    "a whole number of at least 0",
    lambda value: _is_number(value) and value >= 0 and value % 1 == 0,
)
_SHAPES: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "type": (
        "a string or a list of strings",
        lambda value: isinstance(value, str) or _is_list(value, str),
    ),
    "required": _NAMES,
    "enum": ("a list", lambda value: isinstance(value, list)),
    **dict.fromkeys(_OF_NAMES, ("an object", lambda value: isinstance(value, dict))),
    **dict.fromkeys(_OF_MANY, ("a list of schemas", lambda value: isinstance(value, list))),
    **dict.fromkeys(
        ("$ref", "format", "pattern"), ("a string", lambda value: isinstance(value, str))
    ),
    **dict.fromkeys((*_INTEGER_LIMITS, "multipleOf"), _NUMBER),
    **dict.fromkeys(_COUNTS, _COUNT),
}
"""What a keyword's value has to be (JSON Schema 2020-12); subschemas are looked at themselves."""

_NEGATED_QUOTES: Final = re.compile(r'\[\^[^\]]*("|\\\\)')

Schema = dict[str, Any]


def json_schema_grammar(schema: Any, param: str) -> Grammar:
    """The grammar of a JSON schema, given as an object, true, or either as text.

    Raises InvalidRequest, which names the keyword, for what cannot be enforced.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{param} is not JSON: {error}", param) from error
    root = _Normaliser(param).normalise(schema)
    backend = _choose(root, param)
    if backend == "llguidance" and any(map(_excludes_quotes, walk(root, param))):
        root["x-guidance"] = {"json_allowed_escapes": "bfnrt"}
    return Grammar(backend, "json_schema", json.dumps(root, ensure_ascii=False))


def _excludes_quotes(schema: Schema) -> bool:
    """Whether a pattern has a negated class with a quote or a backslash in it. llguidance would
    take their escapes all the same, so the whole answer has to do without these two."""
    patterns = [schema.get("pattern"), *schema.get("patternProperties", ())]
    return any(isinstance(each, str) and _NEGATED_QUOTES.search(each) for each in patterns)


class _Normaliser:
    """Rewrites a schema to the same in fewer words, and refuses what cannot be enforced."""

    def __init__(self, param: str) -> None:
        self._param = param
        self._closes = True

    def normalise(self, schema: Any) -> Schema:
        if schema is True:
            return {}
        if schema is False:
            raise InvalidRequest(
                f"{self._param}: no answer can match the schema false; true is that of any JSON",
                self._param,
            )
        if not isinstance(schema, dict):
            raise InvalidRequest(f"{self._param} must be a JSON schema, an object", self._param)
        # Members of an allOf describe one object together, so that none may be closed on its own.
        self._closes = not any("allOf" in node for node in walk(schema, self._param))
        root = self._subschema(schema, "#")
        assert isinstance(root, dict)
        return root

    def _subschema(self, schema: Any, path: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidRequest(
                f"{self._param}: {path} must be a schema, an object or a boolean", self._param
            )
        result: Schema = {}
        for name, value in schema.items():
            if name == "x-guidance":  # llguidance's options are not the client's to set
                continue
            place = f"{path}/{name}"
            if name in _UNSUPPORTED:
                if name == "uniqueItems" and value is False:
                    continue
                raise InvalidRequest(
                    f"{self._param}: the keyword '{name}' at {place[:200]} is not supported",
                    self._param,
                    "unsupported_keyword",
                )
            if name in _SHAPES and not _SHAPES[name][1](value):
                raise InvalidRequest(
                    f"{self._param}: {place[:200]} must be {_SHAPES[name][0]}", self._param
                )
            result[name] = self._value(name, self._bounded(name, value, place), place)
        self._check_format(result, path)
        if self._closes and "properties" in result and not _is_open(result):
            result["additionalProperties"] = False
        return result

    def _value(self, name: str, value: Any, place: str) -> Any:
        if name in _OF_ONE and not isinstance(value, list):
            return self._subschema(value, place)
        if name in (*_OF_MANY, "items"):
            return [self._subschema(each, f"{place}/{i}") for i, each in enumerate(value)]
        if name in _OF_NAMES:
            return {key: self._subschema(each, f"{place}/{key}") for key, each in value.items()}
        return value

    def _bounded(self, name: str, value: Any, place: str) -> Any:
        """A bound that is out of reach in place of one that is farther away still. One that answers
        would have to pass is refused."""
        if name not in _REACH:
            return value
        lowest, highest = _REACH[name]
        lower = name.lower().endswith("minimum") or name.startswith("min")
        if value >= highest if lower else value <= lowest:
            raise InvalidRequest(
                f"{self._param}: '{name}' at {place[:200]} is too large a number to be enforced",
                self._param,
                "unsupported_keyword",
            )
        return max(value, lowest) if lower else min(value, highest)

    def _check_format(self, schema: Schema, path: str) -> None:
        name = schema.get("format")
        if name is None:
            return
        if name in _ANNOTATION_FORMATS:
            del schema["format"]
        elif name not in _LLGUIDANCE_FORMATS | _XGRAMMAR_FORMATS:
            raise InvalidRequest(
                f"{self._param}: the 'format' {str(name)[:64]!r} at {path[:200]} is not supported",
                self._param,
                "unsupported_keyword",
            )


def _is_list(value: Any, of: type) -> bool:
    return isinstance(value, list) and all(isinstance(each, of) for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def walk(schema: Schema, param: str) -> Iterator[Schema]:
    """All subschemas that are objects. Raises InvalidRequest if they are nested too deeply."""
    pending: list[tuple[Any, int]] = [(schema, 0)]
    while pending:
        node, depth = pending.pop()
        if not isinstance(node, dict):
            continue
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"{param} is nested more than {MAX_DEPTH} levels deep", param)
        yield node
        for name in (*_OF_ONE, *_OF_MANY):
            value = node.get(name)
            pending += [
                (each, depth + 1) for each in (value if isinstance(value, list) else [value])
            ]
        for name in _OF_NAMES:
            if isinstance(value := node.get(name), dict):
                pending += [(each, depth + 1) for each in value.values()]


def _is_open(schema: Schema) -> bool:
    """Whether an object's properties are said elsewhere, too."""
    elsewhere = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref")
    return any(name in schema for name in elsewhere)


def _choose(root: Schema, param: str) -> GrammarBackend:
    """llguidance, which has more keywords and compiles faster, unless something needs xgrammar."""
    needs_xgrammar = ""
    needs_llguidance = ""
    for node in walk(root, param):
        counted = [name for name in ("minProperties", "maxProperties") if name in node]
        optional = set(node.get("properties", ())) - set(node.get("required", ()))
        if counted and optional:
            needs_xgrammar = f"'{counted[0]}' beside properties that are not required"
        if node.get("format") in _XGRAMMAR_FORMATS:
            needs_xgrammar = f"the 'format' '{node['format']}'"
        both = _XGRAMMAR_KEYWORDS | (_INTEGER_LIMITS if node.get("type") == "integer" else set())
        for name in node:
            if name in _LLGUIDANCE_KEYWORDS - both:
                needs_llguidance = f"'{name}'"
        if node.get("format") in _LLGUIDANCE_FORMATS:
            needs_llguidance = f"the 'format' '{node['format']}'"
    if needs_xgrammar and needs_llguidance:
        raise InvalidRequest(
            f"{param}: {needs_xgrammar} cannot go with {needs_llguidance} in one schema",
            param,
            "unsupported_keyword",
        )
    return "xgrammar" if needs_xgrammar else "llguidance"
