"""What the operator reports of an InferenceService."""

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from pagelet.protocol.inference_service.parts import NonNegativeInt, Part

ConditionType = Literal["Valid", "ModelLoaded", "Progressing", "Degraded", "Ready"]
ConditionStatus = Literal["True", "False", "Unknown"]
MOST_MESSAGE_CHARACTERS: Final = 4096


class Condition(Part, kw_only=True):
    """One aspect of the service's state, as `kubectl wait --for=condition=...` reads it."""

    type: ConditionType
    """Ready: answers requests. Progressing: replicas are being made or replaced. ModelLoaded: a
    replica made from the spec as it is now has its model. Degraded: something is wrong that does
    not mend itself. Valid: the spec can work, and everything that it names is there."""
    status: ConditionStatus
    """Whether it holds."""
    reason: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
    """Why, in one word for programs."""
    message: Annotated[str, Meta(max_length=MOST_MESSAGE_CHARACTERS)]
    """Why, for people, and what to do."""
    last_transition_time: Annotated[str, Meta(max_length=64)]
    """When the status last changed, in RFC 3339."""
    observed_generation: NonNegativeInt
    """The generation of the spec that it is about."""


class PodCounts(Part, kw_only=True):
    """Pods of one kind."""

    replicas: NonNegativeInt
    """Pods that are there."""
    ready_replicas: NonNegativeInt
    """Those that answer requests."""


class ReplicaRates(Part, kw_only=True):
    """What a replica has measured of itself."""

    pod: str
    """Its pod."""
    prefill_tokens_per_second: float | None = None
    """Prompt tokens that it computes a second."""
    decode_step_seconds: float | None = None
    """How long a step of generation takes."""


class ServiceStatus(Part, kw_only=True):
    """What is there."""

    observed_generation: NonNegativeInt | None = None
    """The generation of the spec that the rest of the status is about."""
    conditions: Annotated[list[Condition], Meta(max_length=16)] = field(default_factory=list)
    """The service's state."""
    replicas: NonNegativeInt | None = None
    """Replicas that are there, without those of the canary."""
    ready_replicas: NonNegativeInt | None = None
    """Replicas that answer requests."""
    updated_replicas: NonNegativeInt | None = None
    """Replicas made from the spec as it is now."""
    canary: PodCounts | None = None
    """Replicas of the canary."""
    router: PodCounts | None = None
    """Router pods."""
    selector: str | None = None
    """Labels of the replicas, for autoscalers."""
    endpoint: str | None = None
    """Where clients of the cluster reach the service."""
    rates: Annotated[list[ReplicaRates], Meta(max_length=1024)] = field(default_factory=list)
    """What each replica has measured of itself."""
