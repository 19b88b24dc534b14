"""What a plan depends on beside the service: the installation."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """How the operator is installed."""

    agent_image: str
    """Image of replicas and loaders."""
    router_image: str
    operator_namespace: str = "pagelet-system"
    """Where the operator runs, whose pods may ask replicas for their figures."""
    prometheus_address: str = "http://prometheus-operated.monitoring.svc:9090"
    """URL of the Prometheus that KEDA asks for services that name none."""
    monitoring_namespace_labels: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"kubernetes.io/metadata.name": "monitoring"}
    )
    """Namespaces whose pods may scrape replicas."""
    groups: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    """By revision, the numbers of the groups of pods that are to be made from the spec as it is,
    where a replica has several nodes. Default: from 0, as many as replicas."""
