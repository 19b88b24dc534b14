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
    merged = list(base)
    for entry in patch:
        places = [i for i, other in enumerate(merged) if other.get(key) == entry.get(key)]
        if entry.get(_DIRECTIVE) == "delete":
            merged = [other for i, other in enumerate(merged) if i not in places]
        elif places:
            merged[places[0]] = strategic_merge(merged[places[0]], entry)
        else:
            merged.append(strategic_merge({}, entry))
    return merged


def _is_replace(entry: Object) -> bool:
    return entry == {_DIRECTIVE: "replace"}
