"""Names, labels and the frame of the objects that a service becomes."""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from pagelet.protocol.inference_service.kind import GROUP
from pagelet.protocol.inference_service.service import InferenceService

Object = dict[str, Any]
"""A Kubernetes object, as the API server takes it."""
Component = Literal["agent", "router"]

SERVICE_LABEL: Final = f"{GROUP}/service"
COMPONENT_LABEL: Final = f"{GROUP}/component"
REVISION_LABEL: Final = f"{GROUP}/revision"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "pagelet-operator"

HTTP_PORT: Final = 8000
KV_EVENTS_PORT: Final = 5557
KV_REPLAY_PORT: Final = 6557
"""Data-parallel rank i adds i to both."""

POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
"""Kubernetes' own, of the pods of a StatefulSet: of a group of pods, 0 is the head."""
GROUP_LABEL: Final = f"{GROUP}/group"
"""A group's number, on its StatefulSet and its pods."""
TEMPLATE_LABEL: Final = f"{GROUP}/template"
"""Digest of what a group's pods were made from, on its StatefulSet."""
_MOST_SET_NAME: Final = 52
"""Kubernetes writes a StatefulSet's name and ten characters more into a label."""


def selector(service: str, component: Component, revision: str | None = None) -> dict[str, str]:
    """The labels that tell the pods of a component; those of all revisions without one."""
    labels = {SERVICE_LABEL: service, COMPONENT_LABEL: component}
    return labels | ({REVISION_LABEL: revision} if revision else {})


def common_labels(service: str, component: Component) -> dict[str, str]:
    """Labels of every object: the recommended ones, and ours."""
    return {
        "app.kubernetes.io/name": "pagelet",
        "app.kubernetes.io/instance": service,
        "app.kubernetes.io/component": component,
        MANAGED_BY_LABEL: MANAGER,
        **selector(service, component),
    }


def make(
    service: InferenceService,
    kind: str,
    name: str,
    component: Component,
    *,
    api_version: str = "v1",
    revision: str | None = None,
    annotations: Mapping[str, str] | None = None,
    **fields: Any,
) -> Object:
    """An object beside the service."""
    labels = common_labels(service.name, component)
    if revision:
        labels[REVISION_LABEL] = revision
    metadata: Object = {"name": name, "namespace": service.namespace, "labels": labels}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def agent_name(service: str, revision: str) -> str:
    """The Deployment of a revision."""
    return f"{service}-{'agent' if revision == 'stable' else revision}"


def agents_service_name(service: str, revision: str) -> str:
    """The headless Service that lists a revision's replicas."""
    return f"{service}-{'agents' if revision == 'stable' else 'canaries'}"


def nodes_service_name(service: str, revision: str) -> str:
    """The headless Service by which the pods of a revision's groups find one another."""
    return f"{service}-{'nodes' if revision == 'stable' else f'{revision}-nodes'}"


def group_name(service: str, revision: str, index: int) -> str:
    """The StatefulSet of one of a revision's groups."""
    base = agent_name(service, revision)
    name = f"{base}-{index}"
    if len(name) > _MOST_SET_NAME:
        digest = hashlib.sha256(base.encode()).hexdigest()[:8]
        name = f"{service[: _MOST_SET_NAME - 10 - len(str(index))]}-{digest}-{index}"
    return name


def router_name(service: str) -> str:
    """The router's Deployment."""
    return f"{service}-router"
