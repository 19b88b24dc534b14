"""The engine's configuration: one typed object, the same for CLI flags, YAML and the operator.

`msgspec.convert` and `msgspec.to_builtins` read and write it; unknown fields are refused.
"""

from typing import Annotated, Literal

import msgspec

from pagelet.protocol.pooling import PoolingType
from pagelet.protocol.speculation import SpeculationOptions

DType = Literal["auto", "bfloat16", "float16", "float32", "float64"]
KVCacheDType = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"]
Task = Literal["auto", "generate", "embed", "score"]
Quantization = Literal["auto", "none", "int8", "int4", "fp8"]
LogLevel = Literal["debug", "info", "warning", "error"]
ToolCallParser = Literal["auto", "none", "hermes", "llama3_json", "pythonic", "mistral", "gemma"]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class ModelOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which model, and how it is loaded."""

    source: str
    """`hf://org/name[/file.gguf][@revision]`, `s3://bucket/path`, a folder, a `.gguf` file, or
    `package://name`."""
    tokenizer: str | None = None
    """Where the tokenizer comes from, if not from the model; same forms as `source`."""
    chat_template: str | None = None
    """A file with a Jinja chat template, in place of the model's own."""
    served_model_names: list[str] = []
    """Names that requests may use; the first is the one in answers. Default: from the source."""
    dtype: DType = "auto"
    """Of weights and activations. auto: the checkpoint's, but bfloat16 only where the processor
    has instructions for it and float32 elsewhere on CPU."""
    quantization: Quantization = "auto"
    """Of the weights of linear layers. auto: what the checkpoint has: floats stay floats,
    and a GGUF file's quantised blocks stay as they are. none: everything as floats of `dtype`.
    int8: a scale for each 32 weights; int4: a scale and a minimum. Activations are rounded to int8
    for the product with quantised weights. fp8, a scale for each output, is for a GPU, where auto
    keeps what is exact, int4 is refused, and activations are not rounded."""
    max_model_len: PositiveInt | None = None
    """Longest prompt and answer together, in tokens. Default: what the model was made for."""
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: random weights, for speed tests of an architecture without its checkpoint."""
    task: Task = "auto"
    """auto: embed for a model of sentence-transformers or one without a head, score for one that
    classifies sequences, and generate otherwise."""
    pooling: PoolingType | None = None
    """Which states become a prompt's vector. Default: what the model was made for, else last."""
    score_tokens: list[str] = []
    """Two tokens, how a generating model says no and yes: it then scores."""


class CacheOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The paged KV cache."""

    block_size: Literal[8, 16, 32, 64, 128] = 16
    """Tokens a block."""
    kv_cache_dtype: KVCacheDType = "auto"
    """Of cached keys and values. auto: that of activations. int8, with a scale for each token's
    key and value of a head, and fp8 (e4m3, without a scale) hold twice the tokens of bfloat16 in
    the same memory. float16 and fp8 are for a GPU; torch's operations take auto only."""
    kv_cache_memory_bytes: PositiveInt | None = None
    """Size of the KV cache; default: `memory_utilization` of what is really free."""
    memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """Share of the device's memory (or of the cgroup's limit) for weights, activations and KV
    together. Default 0.9 on a GPU; on CPU 0.4, as the machine is shared."""
    num_blocks: PositiveInt | None = None
    """Exact number of blocks, in place of a size in bytes."""
    enable_prefix_caching: bool = True


class SchedulerOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Continuous batching."""

    max_num_seqs: PositiveInt = 256
    """Most requests in one step."""
    max_num_batched_tokens: PositiveInt = 2048
    """Token budget of one step; longer prompts are prefilled in chunks."""
    max_step_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """How long a step may become by the prompts that it prefills: a bound of running streams'
    inter-token latency. The token budget of a step follows the measured speed. Default 0.1 on a
    CPU; on a GPU there is no such bound."""
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = True
    """Schedule the next step while the last one runs."""


class ParallelOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many processes serve the model."""

    tensor_parallel_size: PositiveInt = 1
    """Ranks that hold a part of each layer."""
    pipeline_parallel_size: PositiveInt = 1
    """Stages of such ranks, with a part of the layers each; as many steps are in flight."""
    data_parallel_size: PositiveInt = 1
    """Copies of the model, each with an engine core of its own."""
    enable_expert_parallel: bool = False
    """Divide the experts over the tensor-parallel ranks, in place of each expert."""

    nnodes: PositiveInt = 1
    """Machines that the ranks of one copy of the model are divided over."""
    node_rank: Annotated[int, msgspec.Meta(ge=0)] = 0
    """This machine among them; 0 is the head, which serves."""
    master_addr: str = "127.0.0.1"
    """The head's address, as the other nodes reach it."""
    master_port: Annotated[int, msgspec.Meta(ge=1, le=65534)] = 29500
    """Where the head listens for them; the collectives meet at the next port. Data-parallel rank i
    takes the i-th pair of ports from there."""

    @property
    def num_ranks(self) -> int:
        """Of one copy of the model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


class CpuOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much of this machine each rank takes where it computes on the CPU: less than all of it
    where several servers run side by side."""

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """Of the cores and of the memory (or of the cgroup's limits of them)."""
    threads: PositiveInt | None = None
    """Threads that compute, in place of a share of the cores."""
    memory_bytes: PositiveInt | None = None
    """Memory to size weights, activations and KV cache by, in place of a share of the machine's."""


class CudaOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is particular to NVIDIA GPUs."""

    enforce_eager: bool = False
    """Launch every kernel of a step by itself, in place of one CUDA graph for all of them."""
    cudagraph_capture_sizes: Annotated[list[PositiveInt], msgspec.Meta(min_length=1)] | None = None
    """Numbers of decoding requests to capture a CUDA graph of at the start; a step is padded up to
    the next one. Default: 1, 2, 4, multiples of 8 to 256 and of 16 to 512, up to `max_num_seqs`."""


class SimulatedRunnerOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The simulated runner's time model: a step of `n` tokens over a context of `c` tokens (summed
    over its requests) takes `step_seconds + max(weights_seconds, n * token_seconds) +
    c * context_token_seconds`."""

    step_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    token_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    context_token_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    weights_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class KVEventsOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """KV events over ZMQ in vLLM's format; off unless `endpoint` is given."""

    endpoint: str | None = None
    """PUB socket, such as `tcp://*:5557`, where port 0 takes a free one, or `ipc:///run/events`;
    data-parallel rank i adds i to the port, or a suffix to the path."""
    replay_endpoint: str | None = None
    """ROUTER socket that replays missed batches, such as `tcp://*:5558`; ranks as above."""
    topic: str = ""
    """The first part of each message; llm-d's router wants `kv@ADDRESS@MODEL`."""


class StructuredOutputOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a grammar may cost to compile; one that costs more is refused."""

    compile_seconds: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    compile_memory_bytes: PositiveInt = 1 << 30


class LoraOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters of the model, which requests choose by name."""

    enabled: bool = False
    modules: dict[str, str] = {}
    """Adapters by name, there from the start: `hf://ORG/NAME[@REVISION]`, `s3://BUCKET/FOLDER`, or
    a folder."""
    max_loras: PositiveInt = 8
    """Most different adapters of one step; requests for others wait."""
    max_cpu_loras: PositiveInt = 16
    """Most adapters in memory; the one unused for longest is read again when it is needed."""
    max_rank: PositiveInt = 16
    allow_updates: bool = False
    """Whether requests may load and unload adapters while the server runs."""


class EngineOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Everything that an engine needs to know before it starts."""

    model: ModelOptions
    cache: CacheOptions = msgspec.field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = msgspec.field(default_factory=SchedulerOptions)
    parallel: ParallelOptions = msgspec.field(default_factory=ParallelOptions)
    cpu: CpuOptions = msgspec.field(default_factory=CpuOptions)
    cuda: CudaOptions = msgspec.field(default_factory=CudaOptions)
    kv_events: KVEventsOptions = msgspec.field(default_factory=KVEventsOptions)
    structured: StructuredOutputOptions = msgspec.field(default_factory=StructuredOutputOptions)
    lora: LoraOptions = msgspec.field(default_factory=LoraOptions)
    speculation: SpeculationOptions | None = None
    """Speculative decoding; None: off."""
    runner: Literal["model", "simulated"] = "model"
    simulated: SimulatedRunnerOptions = msgspec.field(default_factory=SimulatedRunnerOptions)
    device: Literal["auto", "cpu", "cuda"] = "auto"
