"""Patches over pod templates: what a merge must know is refused where it stands."""

from typing import Any

import pytest

from pagelet.protocol.inference_service.load import InvalidServices, read_service
from support.broken_services import service

AT = "spec.podTemplate"
GONE = "takes away the container agent, which does the work: leave it there"


def patched(*containers: Any, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ({"containers": []}, "containers: there is no such field; there are metadata, spec"),
        ({"metadata": "a"}, "metadata: takes a mapping"),
        ({"metadata": {"labels": ["a"]}}, "metadata.labels: takes a mapping"),
        (
            {"metadata": {"annotations": {"a": 5}}},
            "metadata.annotations.a: takes a string; put it into quotes",
        ),
        ({"spec": None}, "spec: takes a mapping"),
        ({"spec": []}, "spec: takes a mapping"),
        ({"spec": {"containers": {"name": "agent"}}}, "spec.containers: takes a list"),
        (patched("agent"), "spec.containers[0]: takes a mapping"),
        (patched(None), "spec.containers[0]: takes a mapping"),
        (patched({"image": "a"}), "spec.containers[0].name: is missing"),
        (
            patched({"name": "agent", "env": ["A=b"]}),
            "spec.containers[0].env[0]: takes a mapping",
        ),
        (
            patched({"name": "agent", "ports": [{"name": "a"}]}),
            "spec.containers[0].ports[0].containerPort: is missing",
        ),
        (patched({"name": "agent", "args": "-v"}), "spec.containers[0].args: takes a list of str"),
        (patched({"name": "agent", "args": [1]}), "spec.containers[0].args: takes a list of str"),
        (
            patched({"name": "engine", "env": []}),
            "spec.containers[0]: engine has no image: give it one, or change the container agent",
        ),
        ({"spec": {"containers": None}}, f"spec.containers: {GONE}"),
        (patched({"name": "agent", "$patch": "delete"}), f"spec.containers: {GONE}"),
        (patched({"$patch": "replace"}), f"spec.containers: {GONE}"),
        (patched({"name": "a", "image": "a"}, **{"$patch": "replace"}), f"spec.containers: {GONE}"),
    ],
)
def test_what_cannot_be_merged_is_refused(patch: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidServices) as refused:
        read_service(service(podTemplate=patch))
    [found] = refused.value.problems
    assert found.startswith(f"{AT}.{problem}")


def test_a_router_has_a_container_of_its_own() -> None:
    with pytest.raises(InvalidServices, match=r"router\.podTemplate\.spec\.containers\[0\]: agent"):
        read_service(service(router={"podTemplate": patched({"name": "agent", "args": []})}))
    read_service(service(router={"podTemplate": patched({"name": "router", "args": []})}))


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": None},
        {"metadata": {"labels": None, "annotations": {"a": "b"}}},
        {"spec": {"volumes": None, "nodeSelector": {"ports": "a"}}},
        patched({"name": "agent", "env": None, "args": None}),
        patched({"$patch": "replace"}, {"name": "agent", "image": "a"}),
        patched({"name": "sidecar", "image": "a"}),
    ],
)
def test_what_can_be_merged_is_kept_as_it_is_with_its_nulls(patch: dict[str, Any]) -> None:
    assert read_service(service(podTemplate=patch)).spec.pod_template == patch
