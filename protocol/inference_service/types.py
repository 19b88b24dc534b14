"""The InferenceService, `pagelet.dev/v1alpha1`: one model, served by replicas behind a router.

The same types make the CRD's schema (`crd.py`), read the YAML of local mode (`load.py`), and are
what the operator plans from. JSON names are in camelCase. A field of None was left out; what it
then means stands in its description.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, field

from pagelet.protocol.autoscaling.demand import ScalingTargets
from pagelet.protocol.config import (
    CacheOptions,
    DType,
    KVCacheDType,
    PositiveInt,
    Quantization,
    SchedulerOptions,
    SimulatedRunnerOptions,
    Task,
    ToolCallParser,
)
from pagelet.protocol.pooling import PoolingType
from pagelet.protocol.router import (
    PolicyName,
    PositiveSeconds,
    ProxyOptions,
    RoutingOptions,
    TenantLimits,
)
from pagelet.protocol.speculation import SpeculationOptions

GROUP: Final = "pagelet.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"

_CACHE, _SCHEDULER, _SIMULATED = CacheOptions(), SchedulerOptions(), SimulatedRunnerOptions()
_SPECULATION, _TARGETS = SpeculationOptions(method="ngram"), ScalingTargets()
_ROUTING, _PROXY, _LIMITS = RoutingOptions(), ProxyOptions(), TenantLimits()

DraftLength = Annotated[int, Meta(ge=1, le=32)]
SpeculationQuantization = Literal["auto", "none", "int8", "int4"]
QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"

Quantity = int | Annotated[str, Meta(pattern=QUANTITY_PATTERN, max_length=32)]
"""An amount as Kubernetes writes it: `4`, `500m`, `8Gi`."""
IntOrPercent = int | Annotated[str, Meta(pattern=r"^[0-9]+%?$", max_length=8)]
"""A count, or a share such as `25%`."""
Name = Annotated[
    str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
]
"""The name of an object of the same namespace."""
Uri = Annotated[str, Meta(min_length=1, max_length=512)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S")]
SecretEntry = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
ScoreToken = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^,]+$")]
Cron = Annotated[str, Meta(max_length=100, pattern=r"^[0-9A-Za-z*/,?#-]+( [0-9A-Za-z*/,?#-]+){4}$")]
"""Five fields."""
NonNegativeInt = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=1, le=65535)]
FreeForm = dict[str, Any]
"""An object of Kubernetes' own, which its API server checks."""
Strings = dict[str, str]


class Part(
    msgspec.Struct,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename="camel",
):
    """A part of an InferenceService."""


class SecretKey(Part, kw_only=True):
    """One entry of a Secret of the same namespace."""

    name: Name
    """The Secret."""
    key: SecretEntry
    """The entry in it."""


class CredentialsSecret(Part, kw_only=True):
    """A Secret of the same namespace, which the loader alone reads."""

    name: Name
    """The Secret. For `s3://` its entries are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if
    there is one, AWS_SESSION_TOKEN."""
    key: SecretEntry | None = None
    """`hf://`: the entry that is the token."""


class S3Spec(Part, kw_only=True):
    """Where the bucket of an `s3://` model is."""

    endpoint: Annotated[str, Meta(max_length=512, pattern=r"^https?://[^/\s]+/?$")] | None = None
    """URL of the store. Default: Amazon's."""
    region: Annotated[str, Meta(max_length=64, pattern=r"^[a-z0-9-]+$")] = "us-east-1"
    """The bucket's."""
    anonymous: bool = False
    """The bucket is public: nothing is signed."""


class ModelStorage(Part, kw_only=True):
    """Where a downloaded model is kept. Without it, in a volume of each pod's own, which is filled
    again whenever the pod is moved."""

    size_limit: Quantity | None = None
    """Most room that a pod's own volume takes on its node. Default: no limit of its own."""
    claim: Name | None = None
    """A PersistentVolumeClaim that all replicas share (ReadWriteMany for more than one node):
    downloaded once."""
    host_path: Annotated[str, Meta(max_length=512, pattern=r"^/.+")] | None = None
    """A folder of the node, shared by the replicas on it. It needs a namespace whose pod security
    level is `privileged`, and a folder that user 65532 may write."""


class ModelSpec(Part, kw_only=True):
    """Which model."""

    uri: Uri
    """`hf://ORG/NAME`, `hf://ORG/NAME/FILE.gguf`, `s3://BUCKET/FOLDER` or `s3://BUCKET/FILE.gguf`
    (downloaded and checked before the replica starts), `pvc://CLAIM/PATH`, `file:///PATH` (in the
    image, or in a volume of `podTemplate`), or `package://NAME` (a Python package of the image)."""
    revision: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\s@]+$")] | None = None
    """Branch, tag or commit of an `hf://` model. Default: `main`."""
    served_names: Annotated[list[ModelName], Meta(max_length=16)] = []
    """Names that requests may use; the first is the one in answers. Default: the name of the
    InferenceService."""
    tokenizer: Uri | None = None
    """Where the tokenizer comes from, if not from the model: the forms of `uri`, but for `pvc://`
    another path of the model's own claim."""
    credentials_secret: CredentialsSecret | None = None
    """For `hf://` models that are private or ask for consent, and buckets that are not public."""
    s3: S3Spec | None = None
    """Where the bucket of an `s3://` model is. Default: at Amazon, in us-east-1."""
    storage: ModelStorage | None = None
    """Where an `hf://` or `s3://` model is kept once it is downloaded."""


class KVCacheSpec(Part, kw_only=True):
    """The paged KV cache of each data-parallel rank."""

    memory: Quantity | None = None
    """Its size in bytes. Default: from `memoryFraction`."""
    memory_fraction: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Share of the device's memory (on a CPU: of the pod's limit) for weights, activations and KV
    cache together. Default: 0.9 on a GPU, 0.4 on a CPU."""
    num_blocks: Annotated[int, Meta(ge=2)] | None = None
    """Exact number of blocks, in place of a size."""
    dtype: KVCacheDType = _CACHE.kv_cache_dtype
    """Of cached keys and values: as activations (`auto`), or `float32`, `bfloat16` or `int8`, which
    holds nearly twice the tokens of bfloat16; on a GPU also `float16`, and `fp8`, which holds
    twice."""
    block_size: Literal[8, 16, 32, 64, 128] = _CACHE.block_size
    """Tokens a block."""
    prefix_caching: bool = _CACHE.enable_prefix_caching
    """Compute a prompt prefix that was seen before only once."""


class SimulatedSpec(Part, kw_only=True):
    """Time model of the simulated runner."""

    step_seconds: Annotated[float, Meta(ge=0)] = _SIMULATED.step_seconds
    """Seconds a step."""
    token_seconds: Annotated[float, Meta(ge=0)] = _SIMULATED.token_seconds
    """Seconds for each token of a step."""
    context_token_seconds: Annotated[float, Meta(ge=0)] = _SIMULATED.context_token_seconds
    """Seconds for each token of context."""
    weights_seconds: Annotated[float, Meta(ge=0)] = _SIMULATED.weights_seconds
    """Least seconds for a step's tokens, however few they are."""


class SpeculationSpec(Part, kw_only=True):
    """Speculative decoding: tokens are guessed, and several verified at once."""

    method: Literal["ngram", "draft_model"]
    """ngram: what followed the last tokens earlier in prompt and answer. draft_model: what a
    smaller model of the same vocabulary says."""
    num_speculative_tokens: DraftLength = _SPECULATION.num_speculative_tokens
    """Most tokens guessed at once for a request."""
    prompt_lookup_max: DraftLength | None = None
    """ngram: the most last tokens that are looked up. Default 5."""
    prompt_lookup_min: DraftLength | None = None
    """ngram: the fewest last tokens that must be found again. Default 2."""
    model: Uri | None = None
    """draft_model: hf://, file:/// or package://, as replicas themselves reach it."""
    quantization: SpeculationQuantization = "auto"
    """draft_model: of its weights."""
    adaptive: bool = True
    """Guess as much as pays off, and nothing while it costs time."""


class EngineSpec(Part, kw_only=True):
    """The engine's settings; each is the option of `pagelet serve` of the same name."""

    tensor_parallel_size: PositiveInt = 1
    """Processes (GPUs) that divide each layer of the model."""
    pipeline_parallel_size: PositiveInt = 1
    """Stages that divide the layers, with tensorParallelSize processes each."""
    expert_parallel: bool = False
    """Divide a mixture's experts over the processes, in place of each expert."""
    data_parallel_size: PositiveInt = 1
    """Copies of the model in a replica, each with an engine of its own."""
    nodes: Annotated[int, Meta(ge=1, le=256)] = 1
    """Pods, one a node, that divide a copy's processes; they come, go and fail together. `pagelet
    up` runs all processes on its one machine."""
    dtype: DType = "auto"
    """Of weights and activations."""
    quantization: Quantization = "auto"
    """Of the weights of linear layers; int4 is for the CPU, fp8 for an accelerator."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: random weights, for speed tests."""
    task: Task = "auto"
    """auto: embed for a model of sentence-transformers or without a head, score for a classifier,
    generate otherwise."""
    pooling: PoolingType | None = None
    """Which states become an embedding. Default: the model's, else last."""
    score_tokens: Annotated[list[ScoreToken], Meta(max_length=2)] = []
    """How a generating model says no and yes: it then scores."""
    tool_call_parser: ToolCallParser = "auto"
    """How the model writes calls of tools; auto: found from its template."""
    max_model_len: PositiveInt | None = None
    """Longest prompt and answer together, in tokens. Default: the model's."""
    kv_cache: KVCacheSpec = field(default_factory=KVCacheSpec)
    """The paged KV cache."""
    max_num_seqs: PositiveInt = _SCHEDULER.max_num_seqs
    """Most requests in one step."""
    max_num_batched_tokens: PositiveInt = _SCHEDULER.max_num_batched_tokens
    """Most tokens in one step; longer prompts take several."""
    max_step_seconds: PositiveSeconds | None = None
    """Bound of a step, and so of running streams' latency, that prefills keep to. Default: 0.1 on
    a CPU, none on a GPU."""
    scheduling_policy: Literal["fcfs", "priority"] = _SCHEDULER.policy
    """priority: smaller `priority` first, then first come, first served."""
    async_scheduling: bool = _SCHEDULER.async_scheduling
    """Schedule the next step while the last one runs."""
    speculation: SpeculationSpec | None = None
    """Default: off."""
    enforce_eager: bool = False
    """Launch every kernel by itself, in place of CUDA graphs. For an accelerator."""
    cudagraph_capture_sizes: Annotated[list[PositiveInt], Meta(max_length=128)] = []
    """Numbers of decoding requests to capture a CUDA graph of. Default: 1, 2, 4, 8, 16, ..., 512,
    up to `maxNumSeqs`. For an accelerator."""
    step_timeout_seconds: PositiveSeconds = 60.0
    """Seconds without progress after which an engine with work is restarted."""
    max_queue: PositiveInt = 1024
    """Most answers in flight in a replica; above that it answers 429."""
    runner: Literal["model", "simulated"] = "model"
    """simulated: no model runs, its time does; tokens are made up. For tests of a cluster."""
    simulated: SimulatedSpec | None = None
    """Time model of `runner: simulated`."""


class Accelerator(Part, kw_only=True):
    """What a replica computes on beside the CPU."""

    resource_name: Annotated[str, Meta(max_length=253, pattern=r"^[a-z0-9.-]+/[-A-Za-z0-9_.]+$")]
    """The extended resource that the node's device plugin offers, such as `nvidia.com/gpu`."""
    count: PositiveInt = 1
    """How many of them a replica gets: tensorParallelSize x pipelineParallelSize x
    dataParallelSize. Each of its `nodes` gets its part."""


class Resources(Part, kw_only=True):
    """CPU and memory of a container: requested, and the limit as well."""

    cpu: Quantity | None = None
    """Cores. Requested only: a limit would stop the engine in mid-step."""
    memory: Quantity | None = None
    """Memory, requested and limit; the engine sizes itself by it."""


class Placement(Part, kw_only=True):
    """On which nodes replicas may run."""

    node_selector: Strings = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[FreeForm], Meta(max_length=32)] = []
    """Taints that replicas tolerate, as in a pod."""


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

    replicas: PositiveInt = 2
    """Router pods. They agree without talking, so any number works."""
    image: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
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
    ] = []
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
    pod_template: FreeForm = {}
    """Merged over the router's pod template as by a strategic merge patch."""


class ServiceExposure(Part, kw_only=True):
    """The Service that clients call."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """As in a Service."""
    port: Port = 80
    """Its port."""
    node_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    """Port on each node, of types NodePort and LoadBalancer. Default: chosen by the cluster."""
    annotations: Strings = {}
    """For the cloud's load balancer."""


class IngressExposure(Part, kw_only=True):
    """An Ingress for the service."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    """The host name that it answers to."""
    path: Annotated[str, Meta(max_length=512, pattern=r"^/")] = "/"
    """Prefix of the paths that it takes."""
    class_name: Name | None = None
    """IngressClass. Default: the cluster's default."""
    tls_secret: Name | None = None
    """Secret with the certificate. Default: plain HTTP."""
    annotations: Strings = {}
    """For the ingress controller, such as its read timeout, which must exceed the longest pause
    within a stream."""


class ParentRef(Part, kw_only=True):
    """A Gateway."""

    name: Name
    """Its name."""
    namespace: Name | None = None
    """Its namespace. Default: that of the InferenceService."""
    section_name: Name | None = None
    """One of its listeners. Default: all that admit the route."""


class HTTPRouteExposure(Part, kw_only=True):
    """A Gateway API HTTPRoute for the service."""

    parent_refs: Annotated[list[ParentRef], Meta(min_length=1, max_length=16)]
    """The Gateways that it attaches to."""
    hostnames: Annotated[list[Annotated[str, Meta(max_length=253)]], Meta(max_length=16)] = []
    """Host names that it answers to. Default: those of the listeners."""


class Exposure(Part, kw_only=True):
    """How clients reach the service."""

    service: ServiceExposure = field(default_factory=ServiceExposure)
    """The Service that clients call."""
    ingress: IngressExposure | None = None
    """Makes an Ingress."""
    http_route: HTTPRouteExposure | None = field(default=None, name="httpRoute")
    """Makes an HTTPRoute; the cluster must have the Gateway API."""


class Rollout(Part, kw_only=True):
    """How a change reaches the replicas."""

    max_surge: IntOrPercent = 1
    """Replicas, or their share, that may be there beyond `replicas`; 0 where no accelerators are
    to spare."""
    max_unavailable: IntOrPercent = 0
    """Replicas, or their share, that may be missing."""
    drain_seconds: Annotated[int, Meta(ge=0, le=86400)] = 600
    """Most seconds that running requests get to finish before their pod ends."""
    startup_seconds: Annotated[int, Meta(ge=10, le=86400)] = 1800
    """Most seconds for loading the model, once it is downloaded, before the pod is restarted."""


class Canary(Part, kw_only=True):
    """A second revision that gets a share of the requests. What it leaves out is as in the service
    itself."""

    weight: Annotated[int, Meta(ge=0, le=100)]
    """Percentage of the requests."""
    replicas: NonNegativeInt = 1
    """Its replicas."""
    image: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """Its image."""
    model: ModelSpec | None = None
    """Its model. It answers to the service's names; `servedNames` stays empty here."""
    engine: EngineSpec | None = None
    """Its engine settings, all of them."""


class AutoscalingTargets(Part, kw_only=True):
    """How much of each kind of work a replica is to have; the scarcest decides."""

    backlog_seconds: PositiveSeconds | None = None
    """Within which the prompts that wait for their first token are worked off, by the prefill rate
    that replicas measure. Default: 2, or half of `ttftSeconds`."""
    ttft_seconds: PositiveSeconds | None = None
    """Time to first token that is wanted, in place of `backlogSeconds`: half of it may be spent on
    waiting, the other half is the prompt's own."""
    concurrency: PositiveInt | None = None
    """Answers, waiting ones among them. Default: maxNumSeqs x dataParallelSize, as many as go on in
    one step."""
    kv_use: Annotated[float, Meta(gt=0, le=1)] = _TARGETS.kv_use
    """Share of the KV cache that answers in flight fill."""


class ScheduleEntry(Part, kw_only=True):
    """A time in which there are at least so many replicas."""

    start: Cron
    """When it begins, in five fields as of cron: minute, hour, day, month, weekday."""
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
    min_replicas: NonNegativeInt = 1
    """Least replicas. With 0, routers hold requests and wake the service (builtin and keda)."""
    max_replicas: Annotated[int, Meta(ge=1, le=1000)]
    """Most replicas."""
    targets: AutoscalingTargets = field(default_factory=AutoscalingTargets)
    """How much of each kind of work a replica is to have."""
    scale_up_seconds: Annotated[int, Meta(ge=0, le=3600)] = 0
    """For which more replicas must be asked for before there are more. The first one is never
    waited for."""
    scale_down_seconds: Annotated[int, Meta(ge=0, le=3600)] = 300
    """For which fewer replicas must be asked for before there are fewer, or none."""
    schedule: Annotated[list[ScheduleEntry], Meta(max_length=16)] = []
    """Times with more replicas than `minReplicas` (keda)."""
    prometheus_address: (
        Annotated[str, Meta(max_length=512, pattern=r"^https?://[^/\s]+(/\S*)?$")] | None
    ) = None
    """URL of the Prometheus that KEDA asks. Default: the operator's."""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """Whose replicas come first where the operator has a budget of accelerators; the highest."""


class ServiceSpec(Part, kw_only=True):
    """What is wanted."""

    model: ModelSpec
    """Which model."""
    replicas: NonNegativeInt = 1
    """Agent pods. With `autoscaling`, that sets this field through the scale subresource: leave it
    out of the YAML."""
    autoscaling: Autoscaling | None = None
    """Default: none, `replicas` is what people set."""
    image: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """Container image of the replicas. Default: the operator's."""
    engine: EngineSpec = field(default_factory=EngineSpec)
    """The engine's settings."""
    accelerator: Accelerator | None = None
    """Default: none, the CPU computes."""
    resources: Resources = field(default_factory=Resources)
    """CPU and memory of a replica, or of each of its `nodes`."""
    placement: Placement = field(default_factory=Placement)
    """On which nodes replicas may run."""
    router: RouterSpec = field(default_factory=RouterSpec)
    """The router in front of the replicas."""
    api_keys: SecretKey | None = None
    """The tenants and their keys, hashed, as a file in a Secret (see `pagelet keys`). Default: no
    key is asked for."""
    exposure: Exposure = field(default_factory=Exposure)
    """How clients reach the service."""
    rollout: Rollout = field(default_factory=Rollout)
    """How a change reaches the replicas."""
    canary: Canary | None = None
    """A second revision that gets a share of the requests."""
    pod_template: FreeForm = {}
    """Merged over the replicas' pod template as by a strategic merge patch; the engine's container
    is named `agent`."""


class Revision(Part, kw_only=True):
    """One of the revisions that a service runs: interchangeable replicas of one model."""

    name: Literal["stable", "canary"]
    weight: int
    """Percentage of the requests."""
    replicas: int
    image: str | None
    model: ModelSpec
    engine: EngineSpec


class InferenceService(Part, kw_only=True):
    """One InferenceService, checked."""

    name: str
    namespace: str | None
    spec: ServiceSpec

    @property
    def served_names(self) -> list[str]:
        """Names that requests may use; the first is the one in answers."""
        return self.spec.model.served_names or [self.name]

    @property
    def revisions(self) -> list[Revision]:
        """The service itself, and its canary if it has one."""
        spec, canary = self.spec, self.spec.canary
        stable = Revision(
            name="stable",
            weight=100 - (canary.weight if canary else 0),
            replicas=spec.replicas,
            image=spec.image,
            model=spec.model,
            engine=spec.engine,
        )
        if canary is None:
            return [stable]
        return [
            stable,
            Revision(
                name="canary",
                weight=canary.weight,
                replicas=canary.replicas,
                image=canary.image or spec.image,
                model=canary.model or spec.model,
                engine=canary.engine or spec.engine,
            ),
        ]
