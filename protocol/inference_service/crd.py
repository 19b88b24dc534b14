"""The CustomResourceDefinition, made from the types.

`python -m pagelet.protocol.inference_service.crd FILE...` writes it; a test fails while a committed
copy differs.
"""

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from pagelet.protocol.inference_service.descriptions import (
    class_description,
    field_descriptions,
)
from pagelet.protocol.inference_service.kind import API_VERSION, GROUP, KIND, PLURAL, VERSION
from pagelet.protocol.inference_service.parts import Part
from pagelet.protocol.inference_service.rules import (
    ADAPTER_NAME_MESSAGE,
    ADAPTER_NAME_RULE,
    NAME_MESSAGE,
    NAME_RULE,
    RULES,
)
from pagelet.protocol.inference_service.schema import Schema, part_of, schema_of, spec_schema
from pagelet.protocol.inference_service.status import ServiceStatus

_HEADER: Final = "# Made by `make crds` from protocol/inference_service; do not edit.\n"
_READY: Final = '.status.conditions[?(@.type=="Ready")]'
_COLUMNS: Final = [
    ("Model", "string", ".spec.model.uri", 0),
    ("Wanted", "integer", ".spec.replicas", 0),
    ("Ready", "integer", ".status.readyReplicas", 0),
    ("Status", "string", f"{_READY}.reason", 0),
    ("Endpoint", "string", ".status.endpoint", 1),
    ("Message", "string", f"{_READY}.message", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
]


def custom_resource_definition() -> dict[str, Any]:
    """The object for the API server."""
    made: dict[str, Any] = _whole(_definition())
    return made


def _whole(value: Any) -> Any:
    """With 60 for 60.0, as Helm writes it: to the API server they are two values. What it would
    write otherwise is a conflict for whoever applies the definition after someone else did."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _definition() -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["pgl"],
                "categories": ["all", "pagelet"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path}
                        | ({"priority": priority} if priority else {})
                        for name, kind, path, priority in _COLUMNS
                    ],
                }
            ],
        },
    }


def to_yaml() -> str:
    """The object as the committed file."""
    return _HEADER + yaml.dump(
        custom_resource_definition(), Dumper=_Dumper, sort_keys=False, width=100
    )


def _root() -> Schema:
    status = _complete(schema_of(msgspec.inspect.type_info(ServiceStatus)))
    conditions = status["properties"]["conditions"]
    conditions |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return {
        "description": f"One model, served by replicas behind a router ({API_VERSION}).",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string"}},
            },
            "spec": _complete(spec_schema()),
            "status": status,
        },
        "x-kubernetes-validations": [
            {"rule": NAME_RULE, "message": NAME_MESSAGE, "fieldPath": ".metadata.name"},
            {
                "rule": ADAPTER_NAME_RULE,
                "message": ADAPTER_NAME_MESSAGE,
                "fieldPath": ".spec.model.adapters",
            },
        ],
    }


def _complete(schema: Schema) -> Schema:
    """A copy with descriptions and rules."""
    copy = {key: value for key, value in schema.items() if key != "x-part"}
    if "items" in copy:
        copy["items"] = _complete(copy["items"])
    part = part_of(schema)
    if part is None:
        return copy
    texts = field_descriptions(part)
    copy["description"] = class_description(part)
    copy["properties"] = {}
    for info in msgspec.structs.fields(part):
        completed = _complete(schema["properties"][info.encode_name])
        completed["description"] = texts[info.name]
        copy["properties"][info.encode_name] = completed
    if rules := _validations(part):
        copy["x-kubernetes-validations"] = rules
    return copy


def _validations(part: type[Part]) -> list[dict[str, str]]:
    validations = []
    for rule in RULES:
        if rule.part is not part:
            continue
        validation = {"rule": rule.holds, "message": rule.plain_message()}
        if (expression := rule.message_expression()) is not None:
            validation["messageExpression"] = expression
        if rule.field:
            validation["fieldPath"] = f".{rule.field}"
        validations.append(validation)
    return validations


class _Dumper(yaml.SafeDumper):
    """Writes equal objects out each time, where YAML would refer to the first."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(paths: list[str]) -> None:
    """Writes the definition to each path."""
    for path in paths:
        Path(path).write_text(to_yaml())


if __name__ == "__main__":
    main(sys.argv[1:])
