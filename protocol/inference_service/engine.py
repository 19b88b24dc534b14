"""`spec.engine`: the settings of `pagelet serve`."""

from typing import Annotated, Literal

from msgspec import Meta, field

from pagelet.protocol.config import (
    CacheOptions,
    DType,
    KVCacheDType,
    LogLevel,
    LoraOptions,
    PositiveInt,
    Quantization,
    SchedulerOptions,
    SimulatedRunnerOptions,
    Task,
    ToolCallParser,
)
from pagelet.protocol.inference_service.model import Uri
from pagelet.protocol.inference_service.parts import Part, Quantity
from pagelet.protocol.pooling import PoolingType
from pagelet.protocol.router import PositiveSeconds
from pagelet.protocol.speculation import SpeculationOptions

_CACHE, _SCHEDULER, _SIMULATED = CacheOptions(), SchedulerOptions(), SimulatedRunnerOptions()
_SPECULATION, _LORA = SpeculationOptions(method="ngram"), LoraOptions()
ParallelSize = Annotated[int, Meta(ge=1, le=256)]
"""Beyond any machine, and so that each rank's ports stay apart from those of other purposes."""
DraftLength = Annotated[int, Meta(ge=1, le=32)]
SpeculationQuantization = Literal["auto", "none", "int8", "int4"]
ScoreToken = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^,]+$")]


class KVCacheSpec(Part, kw_only=True):
    """The paged KV cache of each data-parallel rank."""

    memory: Quantity | None = None
    """Its size in bytes. Default: from `memoryFraction`."""
    memory_fraction: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Share of the device's memory (on a CPU: of the pod's limit) for weights, activations and KV
    cache together. Default: 0.9 on a GPU, 0.4 on a CPU."""
    num_blocks: Annotated[int, Meta(ge=2, le=10_000_000)] | None = None
    """Exact number of blocks, in place of a size."""
    dtype: KVCacheDType = _CACHE.kv_cache_dtype
    """Of cached keys and values: as activations (`auto`), or `float32`, `bfloat16` or `int8`, which
    holds nearly twice the tokens of bfloat16; on a GPU also `float16`, and `fp8`, which holds
    twice."""
    block_size: Literal[8, 16, 32, 64, 128] = _CACHE.block_size
    """Tokens a block; 8 only on a GPU."""
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


class LoraSpec(Part, kw_only=True):
    """How many of the model's adapters are computed and kept at once."""

    max_loras: PositiveInt = _LORA.max_loras
    """Most different adapters in one step; requests for others wait."""
    max_cpu_loras: PositiveInt = _LORA.max_cpu_loras
    """Most adapters in memory; others are read again when needed."""
    max_rank: PositiveInt = _LORA.max_rank
    """Largest rank of an adapter."""


class EngineSpec(Part, kw_only=True):
    """The engine's settings; each is the option of `pagelet serve` of the same name."""

    tensor_parallel_size: ParallelSize = 1
    """Processes (GPUs) that divide each layer of the model."""
    pipeline_parallel_size: ParallelSize = 1
    """Stages that divide the layers, with tensorParallelSize processes each."""
    expert_parallel: bool = False
    """Divide a mixture's experts over the processes, in place of each expert."""
    data_parallel_size: ParallelSize = 1
    """Copies of the model in a replica, each with an engine of its own."""
    nodes: ParallelSize = 1
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
    score_tokens: Annotated[list[ScoreToken], Meta(max_length=2)] = field(default_factory=list)
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
    lora: LoraSpec | None = None
    """For `model.adapters`. Default: as where its fields are left out."""
    enforce_eager: bool = False
    """Launch every kernel by itself, in place of CUDA graphs. For an accelerator."""
    cudagraph_capture_sizes: Annotated[list[PositiveInt], Meta(max_length=128)] = field(
        default_factory=list
    )
    """Numbers of decoding requests to capture a CUDA graph of. Default: 1, 2, 4, 8, 16, ..., 512,
    up to `maxNumSeqs`. For an accelerator."""
    step_timeout_seconds: PositiveSeconds = 60.0
    """Seconds without progress after which an engine with work is restarted."""
    max_queue: PositiveInt = 1024
    """Most answers in flight in a replica; above that it answers 429."""
    response_store: Quantity | None = None
    """Most memory, in bytes, for responses that clients ask a replica to keep, for a day at most.
    Default: none is kept."""
    max_body: Quantity = "16Mi"
    """Largest body of a request, in bytes, that replicas and the router take; larger ones get
    413."""
    log_level: LogLevel = "info"
    """Least severe messages that replicas log."""
    runner: Literal["model", "simulated"] = "model"
    """simulated: no model runs, its time does; tokens are made up. For tests of a cluster."""
    simulated: SimulatedSpec | None = None
    """Time model of `runner: simulated`."""
