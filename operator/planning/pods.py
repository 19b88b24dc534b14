"""What all of our pods have in common: restricted pod security, scratch volumes, probes, a grace
period for streams."""

import math
from collections.abc import Mapping
from typing import Any, Final

from pagelet.operator.planning.objects import (
    HTTP_PORT,
    Component,
    Object,
    common_labels,
    make,
)
from pagelet.protocol.inference_service.pods import Resources
from pagelet.protocol.inference_service.service import InferenceService

USER: Final = 65532
"""No user of the host, and what `nonroot` means in distroless images."""
LEAVE_SECONDS: Final = 5
"""Before a container is told to stop: for routers and proxies to learn that it goes."""
REVISIONS_KEPT: Final = 3
"""Of a Deployment, to go back to by hand."""
_CLOSE_SECONDS: Final = 15
"""For the process to end after its drain."""
_STARTUP_PERIOD: Final = 5


def pod_spec(
    containers: list[Object],
    *,
    service_account: str,
    api_access: bool,
    drain_seconds: int,
    volumes: list[Object],
    init_containers: list[Object] | None = None,
) -> Object:
    """A pod that the `restricted` pod security level admits."""
    spec: Object = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": api_access,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": LEAVE_SECONDS + drain_seconds + _CLOSE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            # Else the kubelet changes the owner of every file of a large model at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
        "volumes": volumes,
    }
    if init_containers:
        spec["initContainers"] = init_containers
    return spec


def pod_template(
    service: str,
    component: Component,
    labels: Mapping[str, str],
    pod: Object,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Of the pods that `labels` choose: spread over the nodes, and found by Prometheus. The main
    container is named after the component."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(labels)},
    }
    return {
        "metadata": {
            "labels": {**common_labels(service, component), **labels},
            "annotations": {
                "kubectl.kubernetes.io/default-container": component,
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(HTTP_PORT),
                "prometheus.io/path": "/metrics",
                **(annotations or {}),
            },
        },
        "spec": {**pod, "topologySpreadConstraints": [spread]},
    }


def disruption_budget(
    service: InferenceService,
    name: str,
    component: Component,
    labels: Mapping[str, str],
    revision: str | None = None,
) -> Object:
    """One of the pods that `labels` choose may be taken at a time: pods of a group fail together,
    and then none of another may be taken."""
    return make(
        service,
        "PodDisruptionBudget",
        name,
        component,
        api_version="policy/v1",
        revision=revision,
        spec={
            "maxUnavailable": 1,
            "selector": {"matchLabels": dict(labels)},
            # A replica that does not work must not hold up a node's maintenance.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    )


def container(
    name: str,
    image: str,
    arguments: list[str],
    *,
    mounts: list[Object],
    resources: Object,
    environment: list[Object] | None = None,
    **fields: Any,
) -> Object:
    """A container that runs `pagelet` with some arguments and no rights."""
    return {
        "name": name,
        "image": image,
        "command": ["pagelet"],
        "args": arguments,
        "env": [
            {"name": "HOME", "value": "/tmp"},
            {"name": "XDG_CACHE_HOME", "value": "/cache"},
            *(environment or []),
        ],
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        # The last lines of a log say why a process could not start, and then stand in its status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        **fields,
    }


def server_fields(*, startup_seconds: int, started_path: str = "/ready") -> Object:
    """Port, probes and leave of a container that serves HTTP. It has started once `started_path`
    answers."""
    return {
        "ports": [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "startupProbe": _probe(
            started_path,
            period=_STARTUP_PERIOD,
            failures=math.ceil(startup_seconds / _STARTUP_PERIOD),
        ),
        "readinessProbe": _probe("/ready", period=2, failures=2),
        "livenessProbe": _probe("/health", period=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}},
    }


def _probe(path: str, *, period: int, failures: int) -> Object:
    # A second, the default, is too short on a busy node: replicas would flap under load.
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "successThreshold": 1,
        "failureThreshold": failures,
    }


def scratch_volumes() -> tuple[list[Object], list[Object]]:
    """Volumes, and their mounts, for what a process writes on a read-only root."""
    volumes: list[Object] = [{"name": "cache", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    mounts: list[Object] = [
        {"name": "cache", "mountPath": "/cache"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    return volumes, mounts


def container_resources(resources: Resources, extended: Mapping[str, int] | None = None) -> Object:
    """Memory is requested and limited alike, so that the limit is really there. CPU is requested
    only: a limit would stop the process in mid-step, for all of its streams."""
    memory = {} if resources.memory is None else {"memory": str(resources.memory)}
    cpu = {} if resources.cpu is None else {"cpu": str(resources.cpu)}
    counts = {name: str(count) for name, count in (extended or {}).items()}
    requests, limits = cpu | memory | counts, memory | counts
    return {k: v for k, v in (("requests", requests), ("limits", limits)) if v}
