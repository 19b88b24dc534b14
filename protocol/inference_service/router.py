"""`spec.router`: the router in front of the replicas."""

from typing import Annotated

from msgspec import Meta, field

from pagelet.protocol.config import PositiveInt
from pagelet.protocol.inference_service.parts import (
    MOST_REPLICAS,
    FreeForm,
    Image,
    NonNegativeInt,
    Part,
)
from pagelet.protocol.inference_service.pods import Resources
from pagelet.protocol.router import (
    PolicyName,
    PositiveSeconds,
    ProxyOptions,
    RoutingOptions,
)

_ROUTING, _PROXY = RoutingOptions(), ProxyOptions()


class LimitsSpec(Part, kw_only=True):
    """Limits of each tenant, if its own entry says nothing else."""

    requests_per_minute: PositiveInt | None = None
    """Default: no limit."""
    tokens_per_minute: PositiveInt | None = None
    """Prompt and generated tokens together. Default: no limit."""
    concurrency: PositiveInt | None = None
    """Answers in flight. Default: no limit."""


class RouterSpec(Part, kw_only=True):
    """The router in front of the replicas."""

    replicas: Annotated[int, Meta(ge=1, le=MOST_REPLICAS)] = 2
    """Router pods. They agree without talking, so any number works."""
    image: Image | None = None
    """Container image. Default: the operator's."""
    policy: PolicyName = _ROUTING.policy
    """How a replica is chosen; `prefix` goes where the prompt's beginning is cached."""
    stay_seconds: PositiveSeconds = _ROUTING.stay_seconds
    """`prefix`: how much longer than elsewhere a request waits for the replica that holds its
    prefix."""
    bounded_load: Annotated[float, Meta(gt=1)] = _ROUTING.bounded_load
    """`prefix` and `chwbl`: most load of a replica on the hash ring, over the mean."""
    session_header: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+$", max_length=128)] = (
        _ROUTING.session_header
    )
    """`session`: requests with the same value of it go to the same replica."""
    max_index_blocks: PositiveInt = _ROUTING.max_index_blocks
    """Most blocks that the prefix index remembers, all replicas together."""
    shared_prefixes: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=65536)]], Meta(max_length=64)
    ] = field(default_factory=list)
    """Beginnings of prompts, as the chat template spells them, whose KV blocks tenants may share;
    everything else is cached for each tenant alone."""
    connect_timeout_seconds: PositiveSeconds = _PROXY.connect_timeout
    """For a connection to a replica."""
    first_byte_timeout_seconds: PositiveSeconds = _PROXY.first_byte_timeout
    """From the request until the answer begins."""
    idle_timeout_seconds: PositiveSeconds = _PROXY.idle_timeout
    """Between two chunks of a stream."""
    retry_budget: Annotated[float, Meta(ge=0, le=1)] = _PROXY.retry_budget
    """Most retries, as a share of the requests of the last ten seconds."""
    breaker_failures: PositiveInt = _PROXY.breaker_failures
    """Consecutive failures after which a replica gets no more requests until a probe succeeds."""
    health_interval_seconds: PositiveSeconds = _PROXY.health_interval
    """Between two health checks of a replica."""
    queue_size: NonNegativeInt = _PROXY.queue_size
    """Most requests that wait in a router; more get 429."""
    queue_timeout_seconds: PositiveSeconds = _PROXY.queue_timeout
    """How long a request waits for a replica, as while the service starts from zero; then 503."""
    max_in_flight: PositiveInt | None = None
    """Most answers in flight a replica before requests wait in the router. Default: twice what the
    replica takes in one step."""
    limits: LimitsSpec = field(default_factory=LimitsSpec)
    """Limits of each tenant, if its own entry says nothing else."""
    resources: Resources = field(default_factory=lambda: Resources(cpu="250m", memory="1Gi"))
    """CPU and memory of a router pod."""
    pod_template: FreeForm = field(default_factory=dict)
    """Merged over the router's pod template as by a strategic merge patch."""
