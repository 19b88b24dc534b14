"""The objects of services as they are in the cluster, kept small."""

import dataclasses
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from pagelet.operator.kube.client import Client
from pagelet.operator.kube.reflector import Key, Reflector
from pagelet.operator.kube.resources import (
    CHILDREN,
    DEPLOYMENTS,
    PODS,
    STATEFUL_SETS,
    Object,
    Resource,
    resource_of,
)
from pagelet.operator.planning.objects import MANAGED_BY_LABEL, MANAGER, SERVICE_LABEL

PLAN_ANNOTATION: Final = "pagelet.dev/plan"
"""Digest of what was applied."""
COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """An object that was made for a service."""

    resource: Resource
    name: str
    uid: str
    owners: tuple[str, ...]
    """UIDs."""
    plan: str | None
    """Digest of what was applied."""
    body: bytes
    """The object as JSON: a tenth of the same in dictionaries."""

    def is_as_planned(self, made: Object) -> bool:
        """Whether applying `made` would change nothing: the same was applied before, and nobody
        has changed any of its fields since."""
        wanted = {key: made[key] for key in made.keys() - {"apiVersion", "kind"}}  # not in lists
        return self.plan == plan_digest(made) and _covers(json.loads(self.body), wanted)


def plan_digest(made: Object) -> str:
    """Tells one plan of an object from another."""
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:16]


def with_digest(made: Object) -> Object:
    """The object with its digest noted on it."""
    metadata = made["metadata"]
    annotations = metadata.get("annotations", {}) | {PLAN_ANNOTATION: plan_digest(made)}
    return made | {"metadata": metadata | {"annotations": annotations}}


def _covers(there: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there; what the API server filled in may be there as well."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(
            key in there and _covers(there[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(there, list)
            and len(there) == len(wanted)
            and all(_covers(one, other) for one, other in zip(there, wanted, strict=True))
        )
    return bool(there == wanted)


class Children:
    """What there is for every service; `changed` is called with the key of one whose objects are
    not as they were."""

    def __init__(
        self,
        client: Client,
        namespace: str | None,
        changed: Callable[[Key], None],
        relist_seconds: int,
    ) -> None:
        self._changed = changed
        self._by_service: defaultdict[Key, dict[tuple[str, str], Child]] = defaultdict(dict)
        self._deployments: defaultdict[Key, dict[str, Object]] = defaultdict(dict)
        self._sets: defaultdict[Key, dict[str, Object]] = defaultdict(dict)
        self._pods: defaultdict[Key, dict[str, Object]] = defaultdict(dict)
        self._reflectors = {
            resource: Reflector(
                client,
                resource,
                namespace,
                self._differ(resource),
                keep=_KEEP.get(resource, _keep_all),
                label_selector=f"{MANAGED_BY_LABEL}={MANAGER}",
                relist_seconds=relist_seconds,
            )
            for resource in [*CHILDREN, PODS]
        }

    @property
    def reflectors(self) -> list[Reflector]:
        """What keeps this up to date, while they run."""
        return list(self._reflectors.values())

    def saw(self, found: Object) -> None:
        """Takes an object as it is after a change of our own, before a watch tells of it: else a
        status would be of what was there before."""
        self._reflectors[resource_of(found)].saw(found)

    def of(self, service: Key) -> list[Child]:
        """The objects of a service, without its pods."""
        return list(self._by_service.get(service, {}).values())

    def deployments(self, service: Key) -> dict[str, Object]:
        """Its Deployments with their status, by name."""
        return self._deployments.get(service, {})

    def stateful_sets(self, service: Key) -> list[Object]:
        """Its StatefulSets, without their status."""
        return list(self._sets.get(service, {}).values())

    def pods(self, service: Key) -> list[Object]:
        """Its pods with their status."""
        return list(self._pods.get(service, {}).values())

    def services(self) -> set[Key]:
        """Services that have pods."""
        return {service for service, pods in self._pods.items() if pods}

    def _differ(self, resource: Resource) -> Callable[[Object | None, Object | None], None]:
        def differ(before: Object | None, after: Object | None) -> None:
            for found in filter(None, (before, after)):
                service = _service_of(found)
                name = found["metadata"]["name"]
                gone = after is None or _service_of(after) != service
                if resource == PODS:
                    _put(self._pods, service, name, None if gone else found)
                else:
                    child = None if gone else _child(resource, found)
                    _put(self._by_service, service, (resource.kind, name), child)
                if resource == DEPLOYMENTS:
                    _put(self._deployments, service, name, None if gone else found)
                if resource == STATEFUL_SETS:
                    _put(self._sets, service, name, None if gone else found)
                self._changed(service)

        return differ


def _put(index: dict[Key, dict[Any, Any]], service: Key, key: Any, value: Any) -> None:
    if value is not None:
        index[service][key] = value
    else:
        index[service].pop(key, None)
        if not index[service]:
            del index[service]


def _service_of(found: Object) -> Key:
    metadata = found["metadata"]
    return metadata["namespace"], metadata["labels"].get(SERVICE_LABEL, "")


def _child(resource: Resource, found: Object) -> Child:
    metadata = found["metadata"]
    return Child(
        resource=resource,
        name=metadata["name"],
        uid=metadata["uid"],
        owners=tuple(owner["uid"] for owner in metadata.get("ownerReferences") or ()),
        plan=(metadata.get("annotations") or {}).get(PLAN_ANNOTATION),
        body=found["body"],
    )


def _keep_all(found: Object) -> Object:
    metadata = found["metadata"]
    kept = ("name", "namespace", "uid", "labels", "annotations", "ownerReferences", "generation")
    body = {key: value for key, value in found.items() if key != "status"}
    body["metadata"] = {key: metadata[key] for key in kept if key in metadata}
    return {"metadata": body["metadata"], "body": json.dumps(body).encode()}


def _keep_deployment(found: Object) -> Object:
    replicas = {"replicas": found["spec"].get("replicas", 1)}
    return _keep_all(found) | {"spec": replicas, "status": found.get("status") or {}}


def _keep_stateful_set(found: Object) -> Object:
    kept = _keep_all(found) | {"spec": {"replicas": found["spec"].get("replicas", 1)}}
    kept["metadata"]["creationTimestamp"] = found["metadata"]["creationTimestamp"]
    return kept


def _keep_pod(found: Object) -> Object:
    metadata, status = found["metadata"], found.get("status") or {}
    kept = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp")
    cost = (metadata.get("annotations") or {}).get(COST_ANNOTATION)
    told = ("phase", "podIP", "conditions", "initContainerStatuses", "containerStatuses")
    return {
        "metadata": {
            **{key: metadata[key] for key in kept if key in metadata},
            "annotations": {} if cost is None else {COST_ANNOTATION: cost},
        },
        "status": {key: status[key] for key in told if key in status},
    }


_KEEP: Final = {
    DEPLOYMENTS: _keep_deployment,
    STATEFUL_SETS: _keep_stateful_set,
    PODS: _keep_pod,
}
