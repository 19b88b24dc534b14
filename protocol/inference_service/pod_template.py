"""`podTemplate`: a patch over the pod template of replicas or routers.

Its fields are Kubernetes' own, which the API server checks once they are in a Deployment. What is
checked here is what a merge must know: that lists with a key are lists of entries with that key,
and that the container that does the work is still there.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pagelet.protocol.inference_service.validate import Path, Problem

DIRECTIVE: Final = "$patch"
MERGE_KEYS: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "resizePolicy": "resourceName",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
}
"""Lists that are merged entry by entry, and what tells their entries apart: as Kubernetes' API
types have it."""
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
_MAPPING, _LIST = "takes a mapping", "takes a list"


def pod_template_problems(patch: Mapping[str, Any], worker: str, path: Path) -> Iterator[Problem]:
    """What is wrong with a patch that stands at `path`, over a pod whose work the container
    `worker` does."""
    for name in patch.keys() - {"metadata", "spec"}:
        yield Problem((*path, name), "there is no such field; there are metadata, spec")
    metadata = patch.get("metadata")
    if isinstance(metadata, dict):
        for name in ("labels", "annotations"):
            yield from _strings(metadata.get(name), (*path, "metadata", name))
    elif metadata is not None:
        yield Problem((*path, "metadata"), _MAPPING)
    spec = patch.get("spec", {})
    if not isinstance(spec, dict):
        yield Problem((*path, "spec"), _MAPPING)
        return
    yield from _lists(spec, (*path, "spec"))
    yield from _containers(spec, worker, (*path, "spec"))


def _strings(value: Any, path: Path) -> Iterator[Problem]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield Problem(path, _MAPPING)
        return
    for name, text in value.items():
        if not isinstance(text, str | None):
            yield Problem((*path, name), "takes a string; put it into quotes")


def _lists(value: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    """Of a pod or of a container."""
    for name, entries in value.items():
        at = (*path, name)
        if name in ("command", "args"):
            if not isinstance(entries, list | None) or not all(
                isinstance(each, str) for each in entries or ()
            ):
                yield Problem(at, "takes a list of strings")
            continue
        if name not in MERGE_KEYS or entries is None:
            continue
        if not isinstance(entries, list):
            yield Problem(at, _LIST)
            continue
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict):
                yield Problem((*at, index), _MAPPING)
            elif not _is_replace(entry) and not isinstance(entry.get(MERGE_KEYS[name]), str | int):
                yield Problem((*at, index, MERGE_KEYS[name]), "is missing")
            elif name in _CONTAINERS:
                yield from _lists(entry, (*at, index))


def _containers(spec: Mapping[str, Any], worker: str, path: Path) -> Iterator[Problem]:
    at = (*path, "containers")
    entries = spec.get("containers", [])
    entries = entries if isinstance(entries, list | None) else []
    named = {
        entry["name"]: (index, entry)
        for index, entry in enumerate(entries or ())
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }
    starts_anew = spec.get(DIRECTIVE) == "replace" or any(map(_is_replace, entries or ()))
    is_deleted = worker in named and named[worker][1].get(DIRECTIVE) == "delete"
    if entries is None or is_deleted or (starts_anew and worker not in named):
        yield Problem(at, f"takes away the container {worker}, which does the work: leave it there")
    for name, (index, entry) in named.items():
        if name != worker and DIRECTIVE not in entry and not entry.get("image"):
            yield Problem(
                (*at, index),
                f"{name} has no image: give it one, or change the container {worker} if that is "
                "meant",
            )


def _is_replace(entry: Any) -> bool:
    return isinstance(entry, dict) and entry == {DIRECTIVE: "replace"}
