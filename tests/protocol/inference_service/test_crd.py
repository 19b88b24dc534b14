"""The committed CRD is what the types make, and says what people need."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagelet.protocol.inference_service.crd import custom_resource_definition, to_yaml
from pagelet.protocol.inference_service.load import read_service
from pagelet.protocol.inference_service.reference import to_markdown
from pagelet.protocol.inference_service.rules import RULES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "path", ["crds/inferenceservices.yaml", "charts/pagelet/files/inferenceservices.yaml"]
)
def test_the_committed_definition_is_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text() == to_yaml(), "run: make crds"


def test_the_committed_reference_is_up_to_date() -> None:
    assert (ROOT / "docs/inference-service.md").read_text() == to_markdown(), "run: make crds"


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def root() -> dict[str, Any]:
    [version] = custom_resource_definition()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def test_every_field_is_described_for_kubectl_explain() -> None:
    undescribed = [
        path
        for path, schema in schemas(root())
        if path.startswith((".spec.", ".status."))
        and not path.endswith("[]")
        and not schema.get("description")
    ]
    assert undescribed == []


def test_every_rule_stands_at_every_place_of_its_type() -> None:
    rules = [r for _, s in schemas(root()) for r in s.get("x-kubernetes-validations", ())]
    of_models = ("ModelSpec", "ModelStorage", "AdapterSpec", "ChatTemplate")
    of_engines = ("KVCacheSpec", "EngineSpec", "SpeculationSpec", "LoraSpec")
    places = dict.fromkeys((*of_models, *of_engines, "Resources"), 2)
    expected = sum(places.get(rule.part.__name__, 1) for rule in RULES)
    assert len(rules) == expected + 2  # and those of the name


def defaults(schema: dict[str, Any]) -> dict[str, Any]:
    return {n: s["default"] for n, s in schema["properties"].items() if "default" in s}


def test_the_cluster_fills_in_what_local_mode_fills_in() -> None:
    spec = root()["properties"]["spec"]
    body = {"metadata": {"name": "a"}, "spec": {"model": {"uri": "hf://org/name"}}}
    bare = read_service(body)
    filled = read_service({**body, "spec": defaults(spec) | body["spec"]})  # type: ignore[operator]
    assert filled == bare
