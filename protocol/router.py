"""A router's configuration: one typed object, the same for CLI flags, the file that `pagelet up`
writes and the ConfigMap that the operator makes.

`msgspec.convert` and `msgspec.to_builtins` read and write it; unknown fields are refused.
"""

from typing import Annotated, Literal

import msgspec

from pagelet.protocol.autoscaling.demand import ScalingTargets
from pagelet.protocol.config import PositiveInt

PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
"""Up to eleven days: a clock has no room for 1e308."""
PolicyName = Literal[
    "prefix", "round_robin", "least_request", "power_of_two", "chwbl", "session", "random"
]


class KubernetesService(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A (headless) Service whose EndpointSlices list the replicas."""

    namespace: str
    name: str
    port: str | int = "http"
    """Name or number of the port."""


class Pool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Replicas that are interchangeable: one revision of one model. At least one of the three
    sources is given."""

    name: str = "default"
    weight: Annotated[int, msgspec.Meta(ge=0)] = 100
    """Share of the model's requests, beside the weights of its other pools."""
    replicas: list[str] = []
    """URLs, such as `http://10.0.0.7:8000`."""
    replicas_file: str | None = None
    """A JSON file with a list of `{"id": ..., "url": ...}`, read again whenever it changes. A
    replica with `"takes_requests": false` is asked only for responses that it keeps."""
    service: KubernetesService | None = None


class ModelRoute(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One model that clients may name, and who serves it."""

    name: str | None = None
    """Default: whatever names the replicas say they serve."""
    aliases: list[str] = []
    adapters: list[str] = []
    """Names of LoRA adapters of it, which its replicas know by the same names; those that replicas
    bring need not stand here. A request for one waits for a replica that has it."""
    pools: list[Pool]
    service: str | None = None
    """The InferenceService that it is, for the metric by which that is scaled. Default: `name`."""
    scaling: ScalingTargets = msgspec.field(default_factory=ScalingTargets)
    """How much work a replica is to have, by which the same metric tells how many are needed."""
    starts_from_zero: bool = False
    """Whether it may have no replica at all, and gets one when requests wait: the router is then
    ready without one."""
    shared_prefixes: list[str] = []
    """Beginnings of prompts, as the chat template spells them, whose KV blocks tenants may share;
    everything else is cached for each tenant alone."""


class RoutingOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a replica is chosen."""

    policy: PolicyName = "prefix"
    stay_seconds: PositiveSeconds = 2.0
    """`prefix`: a request stays with the replica that holds its longest prefix until its estimated
    wait there exceeds the estimated wait elsewhere by so much."""
    bounded_load: Annotated[float, msgspec.Meta(gt=1)] = 1.25
    """`prefix` and `chwbl`: most load of a replica on the hash ring, over the mean."""
    session_header: str = "x-session-id"
    """`session`: requests with the same value go to the same replica."""
    max_index_blocks: PositiveInt = 2_000_000
    """Most blocks that the prefix index remembers, all replicas together."""


class ProxyOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a request reaches a replica, and what happens when it does not."""

    connect_timeout: PositiveSeconds = 1.0
    first_byte_timeout: PositiveSeconds = 300.0
    """From the request until the answer begins."""
    idle_timeout: PositiveSeconds = 60.0
    """Between two chunks of a stream."""
    retry_budget: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2
    """Most retries, as a share of the requests of the last ten seconds (ten are always allowed)."""
    breaker_failures: PositiveInt = 5
    """Consecutive failures after which a replica gets no more requests, until a probe succeeds."""
    health_interval: PositiveSeconds = 1.0
    queue_size: Annotated[int, msgspec.Meta(ge=0)] = 1024
    """Most requests that wait in the router; more get 429."""
    queue_timeout: PositiveSeconds = 60.0
    """How long a request waits for a replica, as while a service starts from zero; then 503."""
    max_in_flight: PositiveInt | None = None
    """Most answers in flight a replica before requests wait in the router; default: what the
    replica says that it takes in one step, twice."""
    max_body_bytes: PositiveInt = 16 << 20
    """Largest request body; larger ones get 413."""
    drain_timeout: Annotated[float, msgspec.Meta(ge=0)] = 600.0
    """Most seconds that running requests get to finish after SIGTERM."""


class TenantLimits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """None is no limit."""

    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    """Prompt and generated tokens together."""
    concurrency: PositiveInt | None = None
    """Answers in flight."""
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Share of the replicas when requests wait, beside the weights of other waiting tenants."""

    @property
    def bound_nothing(self) -> bool:
        """Whether a tenant may send whatever it likes."""
        return (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.concurrency is None
        )


class RouterConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything that a router needs to know before it starts."""

    models: list[ModelRoute]
    routing: RoutingOptions = msgspec.field(default_factory=RoutingOptions)
    proxy: ProxyOptions = msgspec.field(default_factory=ProxyOptions)
    api_keys_file: str | None = None
    """The tenants and their keys, hashed; read again whenever it changes. Without it there is one
    tenant, and no key is asked for."""
    default_limits: TenantLimits = msgspec.field(default_factory=TenantLimits)
    """For tenants whose own limits say nothing else."""
    cache_salt_secret_file: str | None = None
    """A secret that all routers of a deployment share: without it nobody can tell the cache salt of
    a tenant, also who may talk to a replica directly."""
    replica_api_key_file: str | None = None
    """The key that replicas ask for."""
