"""What scales a service, where that is not the operator itself: a ScaledObject of KEDA, or a
HorizontalPodAutoscaler. Both go by `pagelet_router_demand_replicas`, and set the scale of the
InferenceService, which alone sets that of its Deployment."""

from typing import Final

from pagelet.operator.planning.context import Context
from pagelet.operator.planning.objects import Object, make
from pagelet.protocol.autoscaling.demand import TARGETS
from pagelet.protocol.inference_service.autoscaling import Autoscaling
from pagelet.protocol.inference_service.kind import API_VERSION, KIND
from pagelet.protocol.inference_service.service import InferenceService
from pagelet.protocol.router_metrics import DEMAND

_POOL: Final = "stable"
_POLL_SECONDS: Final = 5
_FAILURES: Final = 3
"""Questions to Prometheus without an answer before the count is held on purpose."""
_GAP: Final = "1m:5s"
"""For which the last demand stands in for one that is not known, and how closely that is looked
for: longer than KEDA takes to hold the count, and than two scrapes are usually apart."""


def autoscaling_objects(service: InferenceService, context: Context) -> list[Object]:
    """At most one."""
    scaling = service.spec.autoscaling
    if scaling is None or scaling.engine == "builtin":
        return []
    if scaling.engine == "keda":
        return [_scaled_object(service, scaling, context)]
    return [_horizontal(service, scaling)]


def demand_query(service: InferenceService) -> str:
    """PromQL: replicas that the demand asks for, or did last, if that is not long ago.

    A HorizontalPodAutoscaler remembers nothing of a time in which it was told nothing, so after a
    gap the first demand would count alone, however little of the load it shows.
    """
    labels = f'namespace="{service.namespace}",service="{service.name}",pool="{_POOL}"'
    now = f"max(sum by (target) ({DEMAND}{{{labels}}}))"
    return f"{now} or last_over_time({now}[{_GAP}])"


def _target(service: InferenceService) -> Object:
    return {"apiVersion": API_VERSION, "kind": KIND, "name": service.name}


def _behavior(scaling: Autoscaling) -> Object:
    grow = [
        {"type": "Percent", "value": 100, "periodSeconds": 15},
        {"type": "Pods", "value": 4, "periodSeconds": 15},
    ]
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": scaling.scale_up_seconds,
            "selectPolicy": "Max",
            "policies": grow,
        },
        "scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_seconds},
    }


def _scaled_object(service: InferenceService, scaling: Autoscaling, context: Context) -> Object:
    demand = {
        "serverAddress": scaling.prometheus_address or context.prometheus_address,
        "query": demand_query(service),
        "threshold": "1",
        "activationThreshold": "0",
        # No answer is no demand of 0: by default KEDA takes it for one (kedacore/keda#3065).
        "ignoreNullValues": "false",
    }
    triggers: list[Object] = [
        {"type": "prometheus", "name": "demand", "metricType": "AverageValue", "metadata": demand}
    ]
    for entry in scaling.schedule:
        times = {"timezone": entry.timezone, "start": entry.start, "end": entry.end}
        metadata = times | {"desiredReplicas": str(entry.replicas)}
        triggers.append({"type": "cron", "metadata": metadata})
    return make(
        service,
        "ScaledObject",
        service.name,
        "agent",
        api_version="keda.sh/v1alpha1",
        spec={
            "scaleTargetRef": _target(service),
            "pollingInterval": _POLL_SECONDS,
            # To zero; between one and more the windows below count.
            "cooldownPeriod": scaling.scale_down_seconds,
            "initialCooldownPeriod": scaling.scale_down_seconds,
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "fallback": {
                "failureThreshold": _FAILURES,
                # With 0 here KEDA would take a lost metric for no demand.
                "replicas": max(1, scaling.min_replicas),
                "behavior": "currentReplicas",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(scaling)}},
            "triggers": triggers,
        },
    )


def _horizontal(service: InferenceService, scaling: Autoscaling) -> Object:
    metrics = [
        {
            "type": "External",
            "external": {
                "metric": {
                    "name": DEMAND,
                    "selector": {
                        "matchLabels": {"service": service.name, "pool": _POOL, "target": target}
                    },
                },
                "target": {"type": "AverageValue", "averageValue": "1"},
            },
        }
        for target in TARGETS
    ]
    return make(
        service,
        "HorizontalPodAutoscaler",
        service.name,
        "agent",
        api_version="autoscaling/v2",
        spec={
            "scaleTargetRef": _target(service),
            "minReplicas": scaling.min_replicas,
            "maxReplicas": scaling.max_replicas,
            "behavior": _behavior(scaling),
            "metrics": metrics,
        },
    )
