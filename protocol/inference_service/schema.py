"""The structural schema of an InferenceService's spec, made from its types.

It is a JSON schema as Kubernetes takes it (no references, no alternatives but `int-or-string`). The
CRD holds it, and `validate.py` checks local mode's YAML against it.
"""

import functools
from typing import Any, Final, cast

import msgspec
from msgspec import inspect

from pagelet.protocol.inference_service.parts import Part
from pagelet.protocol.inference_service.service import ServiceSpec

Schema = dict[str, Any]

_BOUNDS: Final = {"ge": "minimum", "le": "maximum", "gt": "minimum", "lt": "maximum"}


@functools.cache
def spec_schema() -> Schema:
    """The schema of `spec`. Do not change it."""
    return schema_of(inspect.type_info(ServiceSpec))


def schema_of(info: inspect.Type) -> Schema:
    """The schema of a type; objects carry their class as `x-part`, which the CRD drops."""
    match info:
        case inspect.StructType():
            return _object(info)
        case inspect.UnionType():
            return _union(info)
        case inspect.ListType():
            schema: Schema = {"type": "array", "items": schema_of(info.item_type)}
            return schema | _given(minItems=info.min_length, maxItems=info.max_length)
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": schema_of(info.value_type)}
        case inspect.LiteralType():
            kind = "string" if isinstance(info.values[0], str) else "integer"
            return {"type": kind, "enum": list(info.values)}
        case inspect.StrType():
            return {"type": "string"} | _given(
                minLength=info.min_length, maxLength=info.max_length, pattern=info.pattern
            )
        case inspect.IntType():
            return {"type": "integer", "format": "int64"} | _range(info)
        case inspect.FloatType():
            return {"type": "number"} | _range(info)
        case inspect.BoolType():
            return {"type": "boolean"}
        case _:
            raise TypeError(f"no structural schema for {info}")


def _object(info: inspect.StructType) -> Schema:
    properties, required = {}, []
    for field in info.fields:
        schema = schema_of(field.type)
        default = _default(field, schema)
        if field.required:
            required.append(field.encode_name)
        elif default is not None:
            schema["default"] = default
        properties[field.encode_name] = schema
    schema = {"type": "object", "properties": properties, "x-part": info.cls}
    return schema | ({"required": required} if required else {})


def _default(field: inspect.Field, schema: Schema) -> Any:
    """What the API server fills in, which then stands in the stored object. None: nothing; empty
    lists and free-form objects are left out as well."""
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is msgspec.NODEFAULT:
        return None
    default = field.default_factory()
    return _filled(msgspec.to_builtins(default), schema) if isinstance(default, Part) else None


def _filled(value: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """A default with its own defaults written out: the API server checks it as it stands."""
    defaults = {
        name: inner["default"] for name, inner in schema["properties"].items() if "default" in inner
    }
    return defaults | value


def _union(info: inspect.UnionType) -> Schema:
    """Of a type and None, or of an integer and a string."""
    types = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    if len(types) == 1:
        return schema_of(types[0])
    strings = [option for option in types if isinstance(option, inspect.StrType)]
    if len(types) != 2 or len(strings) != 1:
        raise TypeError(f"no structural schema for {info}")
    text = schema_of(strings[0])
    del text["type"]
    number = next(_range(option) for option in types if isinstance(option, inspect.IntType))
    # Amounts and counts are what is written in either way; strings have a pattern without a sign.
    return {"x-kubernetes-int-or-string": True, "minimum": 0} | number | text


def _range(info: inspect.IntType | inspect.FloatType) -> Schema:
    schema: Schema = {}
    for name, keyword in _BOUNDS.items():
        if (bound := getattr(info, name)) is not None:
            schema[keyword] = bound
            if name in ("gt", "lt"):
                schema["exclusive" + keyword.capitalize()] = True
    return schema


def _given(**keywords: Any) -> Schema:
    return {name: value for name, value in keywords.items() if value is not None}


def part_of(schema: Schema) -> type[Part] | None:
    """The type that an object's schema was made from."""
    return cast("type[Part] | None", schema.get("x-part"))
