"""Who may talk to a service's pods. Enforced where the cluster's network plugin does so."""

from pagelet.operator.planning.context import Context
from pagelet.operator.planning.objects import (
    HTTP_PORT,
    KV_EVENTS_PORT,
    KV_REPLAY_PORT,
    MANAGER,
    Component,
    Object,
    agent_name,
    make,
    router_name,
    selector,
)
from pagelet.protocol.inference_service.service import InferenceService


def network_objects(service: InferenceService, context: Context) -> list[Object]:
    """Replicas are reached by their router, the monitoring and the operator alone; routers by
    anyone on their one port."""
    http = _ports(HTTP_PORT, HTTP_PORT)
    ranks = max(revision.engine.data_parallel_size for revision in service.revisions)
    events = [
        *_ports(KV_EVENTS_PORT, KV_EVENTS_PORT + ranks - 1),
        *_ports(KV_REPLAY_PORT, KV_REPLAY_PORT + ranks - 1),
    ]
    router = {"podSelector": {"matchLabels": selector(service.name, "router")}}
    monitoring = {"namespaceSelector": {"matchLabels": dict(context.monitoring_namespace_labels)}}
    operator = {
        "namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": context.operator_namespace}
        },
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": MANAGER}},
    }
    agents = [
        {"from": [router], "ports": [*http, *events]},
        {"from": [monitoring, operator], "ports": http},
    ]
    if any(revision.engine.nodes > 1 for revision in service.revisions):
        # Nodes of a replica: its collectives choose ports of their own.
        own = {"podSelector": {"matchLabels": selector(service.name, "agent")}}
        agents.append({"from": [own]})
    return [
        _policy(service, agent_name(service.name, "stable"), "agent", agents),
        _policy(service, router_name(service.name), "router", [{"ports": http}]),
    ]


def _policy(
    service: InferenceService, name: str, component: Component, ingress: list[Object]
) -> Object:
    return make(
        service,
        "NetworkPolicy",
        name,
        component,
        api_version="networking.k8s.io/v1",
        spec={
            "podSelector": {"matchLabels": selector(service.name, component)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    )


def _ports(first: int, last: int) -> list[Object]:
    port: Object = {"protocol": "TCP", "port": first}
    return [port if first == last else port | {"endPort": last}]
