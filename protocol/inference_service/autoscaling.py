"""`spec.autoscaling`: who sets the number of replicas, and by what."""

from typing import Annotated, Literal

from msgspec import Meta, field

from pagelet.protocol.autoscaling.demand import ScalingTargets
from pagelet.protocol.config import PositiveInt
from pagelet.protocol.inference_service.parts import MOST_REPLICAS, Part, ReplicaCount
from pagelet.protocol.router import PositiveSeconds

_TARGETS = ScalingTargets()
Cron = Annotated[str, Meta(max_length=100, pattern=r"^[0-9A-Za-z*/,?#-]+( [0-9A-Za-z*/,?#-]+){4}$")]
"""Five fields."""


class AutoscalingTargets(Part, kw_only=True):
    """How much of each kind of work a replica is to have; the scarcest decides."""

    backlog_seconds: PositiveSeconds | None = None
    """Within which the prompts that wait for their first token are worked off, by the prefill rate
    that replicas measure. Default: 2."""
    ttft_seconds: PositiveSeconds | None = None
    """Time to first token that 95 of 100 prompts are to keep, in place of `backlogSeconds`; of
    those that would on an idle replica."""
    tpot_seconds: PositiveSeconds | None = None
    """Time between two tokens of an answer that is to be kept in the mean, by how that grows with
    the answers that a replica gives at once, as routers see it. Default: none."""
    concurrency: PositiveInt | None = None
    """Answers, waiting ones among them. Default: maxNumSeqs x dataParallelSize, as many as go on in
    one step."""
    kv_use: Annotated[float, Meta(gt=0, le=1)] = _TARGETS.kv_use
    """Share of the KV cache that answers in flight fill."""


class ScheduleEntry(Part, kw_only=True):
    """A time in which there are at least so many replicas."""

    start: Cron
    """When it begins, in five fields as of cron: minute, hour, day, month, weekday (from 0, which
    is Sunday)."""
    end: Cron
    """When it ends."""
    timezone: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")]
    """Of both, such as `Europe/Berlin`."""
    replicas: PositiveInt
    """Least replicas in it."""


class Autoscaling(Part, kw_only=True):
    """Who sets `spec.replicas`, and by what. A canary keeps its own number."""

    engine: Literal["builtin", "keda", "hpa"] = "builtin"
    """builtin: the operator. keda: a ScaledObject, which asks Prometheus. hpa: a
    HorizontalPodAutoscaler on the external metric `pagelet_router_demand_replicas`, which an
    adapter serves. On one machine `pagelet up` does it, whatever stands here."""
    min_replicas: ReplicaCount = 1
    """Least replicas. With 0, routers hold requests and wake the service (builtin and keda)."""
    max_replicas: Annotated[int, Meta(ge=1, le=MOST_REPLICAS)]
    """Most replicas."""
    targets: AutoscalingTargets = field(default_factory=AutoscalingTargets)
    """How much of each kind of work a replica is to have."""
    scale_up_seconds: Annotated[int, Meta(ge=0, le=3600)] = 0
    """For which more replicas must be asked for before there are more. The first one is never
    waited for."""
    scale_down_seconds: Annotated[int, Meta(ge=0, le=3600)] = 300
    """For which fewer replicas must be asked for before there are fewer, or none."""
    schedule: Annotated[list[ScheduleEntry], Meta(max_length=16)] = field(default_factory=list)
    """Times with more replicas than `minReplicas` (builtin and keda)."""
    prometheus_address: (
        Annotated[str, Meta(max_length=512, pattern=r"^https?://[^/\s]+(/\S*)?$")] | None
    ) = None
    """URL of the Prometheus that KEDA asks. Default: the operator's."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """Whose replicas come first where the operator has a budget of accelerators; the highest."""
