"""Strategic merge of pod templates: what `kubectl patch --type=strategic` does, for the part of
Kubernetes' types that a pod template is made of.

Lists whose entries have a key are merged entry by entry; other lists are replaced. A null removes
a field; `$patch: delete` in an entry removes the entry of its key, and `$patch: replace` puts the
patch in the place of what is there. The keys are those of Kubernetes' API types.
"""

import copy
from typing import Any, Final

from pagelet.operator.planning.objects import Object

_DIRECTIVE: Final = "$patch"
_MERGE_KEYS: Final = {
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


def merge_pod_template(template: Object, patch: Object, selector: dict[str, str]) -> Object:
    """A pod template with a user's patch over it. The labels of `selector` stay, as else the pods
    would not be the Deployment's."""
    merged = strategic_merge(template, patch)
    labels = merged.setdefault("metadata", {}).setdefault("labels", {})
    labels.update(selector)
    return merged


def strategic_merge(base: Object, patch: Object) -> Object:
    """`base` with `patch` over it; neither is changed."""
    if patch.get(_DIRECTIVE) == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != _DIRECTIVE}
    merged = copy.deepcopy(base)
    for key, value in patch.items():
        if value is None or (isinstance(value, dict) and value.get(_DIRECTIVE) == "delete"):
            merged.pop(key, None)
        elif isinstance(value, dict):
            there = merged.get(key)
            merged[key] = strategic_merge(there if isinstance(there, dict) else {}, value)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            merged[key] = _merge_lists(merged.get(key) or [], value, _MERGE_KEYS[key])
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _merge_lists(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    if any(_is_replace(entry) for entry in patch):
        return [copy.deepcopy(entry) for entry in patch if not _is_replace(entry)]
    places = {entry.get(key): place for place, entry in enumerate(base)}
    patched = [
        (places.get(entry.get(key), -1), entry)
        for entry in patch
        if entry.get(_DIRECTIVE) != "delete"
    ]
    named = {entry.get(key) for entry in patch}
    untouched = [(place, other) for place, other in enumerate(base) if other.get(key) not in named]
    # Both keep their order, and a new entry comes first, as in the API server.
    merged = []
    while patched or untouched:
        if not untouched or (patched and patched[0][0] < untouched[0][0]):
            place, entry = patched.pop(0)
            merged.append(strategic_merge(base[place] if place >= 0 else {}, entry))
        else:
            merged.append(untouched.pop(0)[1])
    return merged


def _is_replace(entry: Object) -> bool:
    return entry == {_DIRECTIVE: "replace"}
