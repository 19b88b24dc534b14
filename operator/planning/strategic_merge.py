"""Strategic merge of pod templates: what `kubectl patch --type=strategic` does, for the part of
Kubernetes' types that a pod template is made of.

Lists whose entries have a key are merged entry by entry; other lists are replaced. A null removes
a field; `$patch: delete` in an entry removes the entry of its key, and `$patch: replace` puts the
patch in the place of what is there. A patch's shape was checked before
(`pagelet.protocol.inference_service.pod_template`).
"""

import copy
from typing import Any

from pagelet.operator.planning.objects import MANAGED_BY_LABEL, MANAGER, Object
from pagelet.protocol.inference_service.pod_template import DIRECTIVE, MERGE_KEYS


def merge_pod_template(template: Object, patch: Object, selector: dict[str, str]) -> Object:
    """A pod template with a user's patch over it. The labels of `selector` stay, as else the pods
    would not be the Deployment's, and that by which the operator finds them."""
    merged = strategic_merge(template, patch)
    labels = merged.setdefault("metadata", {}).setdefault("labels", {})
    labels.update(selector | {MANAGED_BY_LABEL: MANAGER})
    return merged


def strategic_merge(base: Object, patch: Object) -> Object:
    """`base` with `patch` over it; neither is changed."""
    if patch.get(DIRECTIVE) == "replace":
        return {key: copy.deepcopy(value) for key, value in patch.items() if key != DIRECTIVE}
    merged = copy.deepcopy(base)
    for key, value in patch.items():
        if value is None or (isinstance(value, dict) and value.get(DIRECTIVE) == "delete"):
            merged.pop(key, None)
        elif isinstance(value, dict):
            there = merged.get(key)
            merged[key] = strategic_merge(there if isinstance(there, dict) else {}, value)
        elif isinstance(value, list) and _has_entries(value, MERGE_KEYS.get(key)):
            merged[key] = _merge_lists(merged.get(key) or [], value, MERGE_KEYS[key])
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
        if entry.get(DIRECTIVE) != "delete"
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


def _has_entries(value: list[Any], key: str | None) -> bool:
    """Whether a list is merged by a key, and not another one of the same name, as in a field that
    Kubernetes does not have."""
    return key is not None and all(
        isinstance(entry, dict) and not isinstance(entry.get(key), dict | list) for entry in value
    )


def _is_replace(entry: Object) -> bool:
    return entry == {DIRECTIVE: "replace"}
