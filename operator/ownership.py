"""Whose object it is that has the name of one that a service needs.

Server-side apply refuses to overwrite what someone else has set, but adds to an object in which
nobody has: a ServiceAccount of the same name, say, would become the service's, and be deleted with
it. And two services whose names differ by a suffix of ours would take an object from one another.
"""

from typing import Final

from pagelet.operator.kube.resources import Object
from pagelet.operator.planning.objects import MANAGED_BY_LABEL, MANAGER, SERVICE_LABEL
from pagelet.protocol.inference_service.kind import KIND

MERGEABLE: Final = frozenset({"ConfigMap", "Service", "ServiceAccount"})
"""Kinds of which an apply over someone else's object can go without a conflict."""


def stranger(found: Object, service: Object) -> str | None:
    """Who an object belongs to, in words; None if it is `service`'s: its own, what an earlier
    service of the same name has left, or what was left to nobody (`--cascade=orphan`)."""
    metadata, ours = found["metadata"], service["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            is_ours = (owner["kind"], owner["name"]) == (KIND, ours["name"])
            return None if is_ours else f"it belongs to {owner['kind']} {owner['name']}"
    labels = metadata.get("labels") or {}
    if (labels.get(MANAGED_BY_LABEL), labels.get(SERVICE_LABEL)) == (MANAGER, ours["name"]):
        return None
    return "the operator did not make it"
