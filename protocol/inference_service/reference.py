"""The reference of an InferenceService's fields, made from the types.

`python -m pagelet.protocol.inference_service.reference FILE` writes it; a test fails while the
committed copy differs.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from pagelet.protocol.inference_service.descriptions import (
    class_description,
    field_descriptions,
)
from pagelet.protocol.inference_service.kind import API_VERSION, KIND
from pagelet.protocol.inference_service.parts import Part
from pagelet.protocol.inference_service.rules import NAME_FORM, RULES
from pagelet.protocol.inference_service.schema import Schema, part_of, schema_of, spec_schema
from pagelet.protocol.inference_service.status import ServiceStatus

_INTRODUCTION: Final = f"""\
# InferenceService reference

<!-- Made by `make crds` from protocol/inference_service; do not edit. -->

`apiVersion: {API_VERSION}`, `kind: {KIND}`. The same in a cluster (`kubectl explain pgl.spec`)
and on one machine (`pagelet up`). How it is used: [kubernetes.md](kubernetes.md).

`metadata.name` is the model's name for clients, unless `spec.model.servedNames` says another. It is
{NAME_FORM}.

A default in the tables is filled in by the API server. Quantities are written as in Kubernetes:
`4`, `500m`, `8Gi`. Words in capitals stand for values.
"""


def to_markdown() -> str:
    """The whole page."""
    sections = [_INTRODUCTION]
    seen: set[type[Part]] = set()
    for path, schema in _objects("spec", spec_schema()):
        sections += _section(path, schema, seen)
    status = schema_of(msgspec.inspect.type_info(ServiceStatus))
    for path, schema in _objects("status", status):
        sections += _section(path, schema, seen)
    return "\n".join(sections)


def _objects(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Objects with fields of their own, each before those inside of it."""
    if schema.get("type") == "array":
        yield from _objects(f"{path}[]", schema["items"])
    if part_of(schema) is not None:
        yield path, schema
        for name, inner in schema["properties"].items():
            yield from _objects(f"{path}.{name}", inner)


def _section(path: str, schema: Schema, seen: set[type[Part]]) -> list[str]:
    part = part_of(schema)
    assert part is not None
    if part in seen:  # such as spec.canary.engine
        return []
    seen.add(part)
    lines = [f"## {path}", "", class_description(part), ""]
    lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    texts = field_descriptions(part)
    for field in msgspec.structs.fields(part):
        inner = schema["properties"][field.encode_name]
        needed = field.encode_name in schema.get("required", ())
        cells = (
            f"`{field.encode_name}`",
            _type(inner),
            "required" if needed else _default(inner),
            texts[field.name],
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    rules = [rule for rule in RULES if rule.part is part]
    if rules:
        lines += ["", "Refused with these words:", ""]
        lines += [
            f"- {f'`{rule.field}`: ' if rule.field else ''}{rule.plain_message()}" for rule in rules
        ]
    return [*lines, ""]


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{option}`" for option in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "count or percentage" if "%" in schema["pattern"] else "quantity"
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if schema["type"] == "object":
        return "map of strings" if "additionalProperties" in schema else "object"
    return str(schema["type"]) + _bounds(schema)


def _bounds(schema: Schema) -> str:
    words = []
    if "minimum" in schema:
        sign = ">" if schema.get("exclusiveMinimum") else "≥"
        words.append(f"{sign} {schema['minimum']}")
    if "maximum" in schema:
        words.append(f"≤ {schema['maximum']}")
    return f" {', '.join(words)}" if words else ""


def _default(schema: Schema) -> str:
    default: Any = schema.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(to_markdown())
