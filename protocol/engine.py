"""Messages between the API process and an engine core: msgpack over a unix stream socket.

Every frame is a 4-byte little-endian length and one msgpack value of the union `ToCore` or
`FromCore`. Times are `time.monotonic()` seconds, which on Linux all processes of a machine share.
"""

from typing import Final, Literal

import msgspec

from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.pooling import PoolingParams
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.structured import StructuredOutput

FinishReason = Literal["stop", "length", "abort", "error"]


class EngineCoreRequest(msgspec.Struct, kw_only=True, omit_defaults=True, tag="add"):
    """One sequence to generate (`n` is already 1 here)."""

    request_id: int
    """Unique on its connection; small integers keep the step's message short."""
    external_id: str
    """The id that the client and the logs know."""
    prompt_token_ids: list[int]
    params: SamplingParams
    eos_token_ids: list[int] = []
    arrival_time: float = 0.0
    priority: int = 0
    """Smaller runs first under the priority policy."""
    cache_salt: str | None = None
    """Prefix blocks are shared only among requests with the same salt."""
    shared_prefix_tokens: int = 0
    """Blocks that lie wholly within so many first tokens are shared whatever the salt."""
    output_token_ids: list[int] = []
    """Tokens that were generated already, before another engine broke off: the request goes on
    after them as after a preemption. Not yet as many as `max_tokens`, and none ends the request."""
    structured: StructuredOutput | None = None
    """What the answer must match."""
    pooling: PoolingParams | None = None
    """Nothing is generated: the prompt's vector is asked for."""
    lora: LoraAdapter | None = None
    """What changes the model for this request."""


class AbortRequests(msgspec.Struct, tag="abort"):
    """Stop these requests; unknown ids are ignored."""

    request_ids: list[int]


class Acknowledge(msgspec.Struct, tag="ack"):
    """So many `EngineCoreOutputs` were handled since the last such message, which comes for every
    `MOST_UNACKNOWLEDGED // 2` of them.

    The core stops stepping while too many are unanswered: tokens that nobody can pass on yet would
    only queue up between the processes and be late."""

    count: int


MOST_UNACKNOWLEDGED: Final = 4
"""Steps whose outputs the client has not handled yet; then the core waits for it."""


ToCore = EngineCoreRequest | AbortRequests | Acknowledge


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Logprobs at one position: the chosen token first, then the most likely ones in order."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Rank of the chosen token among all, 1 is the most likely."""


class EngineCoreOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """What one step brought for one request."""

    request_id: int
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token id, if one of `stop_token_ids` ended the request."""
    logprobs: list[TokenLogprobs] | None = None
    """One a new token, if asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One a prompt token (None for the first), whole with the first output, if asked for."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; given with the first output."""
    scheduled_time: float = 0.0
    """When the request first left the waiting queue; given with the first output."""
    error: str | None = None
    """Why, if `finish_reason` is "error"."""
    request_fault: bool = False
    """Whether the request itself is the reason of the error, so that it would fail again."""
    ends_in_text: bool = False
    """Whether a grammar was complete: the last token is text then, and no token that stops."""
    pooled: bytes | None = None
    """The prompt's vector, float32, if `pooling` asked for one."""


class BlockResidency(msgspec.Struct, array_like=True):
    """A cached block's stay in the KV cache, in seconds."""

    lifetime: float
    """From its allocation to its eviction."""
    idle: float
    """From its last use to its eviction."""
    reuse_gaps: list[float]
    """From one use to the next."""


class SpeculationStats(msgspec.Struct, array_like=True):
    """Counts of speculative decoding since the last message."""

    num_drafts: int = 0
    """Times that tokens were drafted for a request."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = []
    """Of the first token of a draft, the second, ..., as far as any was accepted."""


class SchedulerStats(msgspec.Struct, array_like=True):
    """The scheduler's state after a step, and what was counted since the last message."""

    num_running: int = 0
    num_waiting: int = 0
    num_waiting_deferred: int = 0
    """Of those waiting: not for want of capacity but for something else to be ready."""
    kv_cache_usage: float = 0.0
    """Used share of the KV blocks, 0 to 1."""
    prefix_cache_queries: int = 0
    """Prompt tokens looked up in the prefix cache, since the last message."""
    prefix_cache_hits: int = 0
    """Prompt tokens found, since the last message."""
    num_preemptions: int = 0
    """Since the last message."""
    num_scheduled_tokens: int = 0
    """Tokens of the step."""
    step: int = 0
    evicted: list[BlockResidency] = []
    """Of a sample of the blocks evicted since the last message."""
    prefill_tokens_per_second: float = 0.0
    """Of full steps, by what was measured; 0.0 until it is known."""
    decode_step_seconds: float = 0.0
    """Of a step of decodes alone, as measured; 0.0 until there was one."""
    speculation: SpeculationStats | None = None
    """None while it is off."""
    running_adapters: list[str] = []
    """Names of the adapters that running requests have, in order."""
    waiting_adapters: list[str] = []
    """Those of waiting requests."""


class EngineCoreOutputs(msgspec.Struct, array_like=True, tag="outputs"):
    """All outputs of a step (or only stats, sent when idle about once a second)."""

    timestamp: float
    outputs: list[EngineCoreOutput]
    stats: SchedulerStats


class KVEventSockets(msgspec.Struct, array_like=True):
    """Where a core publishes its KV events, as the sockets are bound: with the port that a free
    one was taken for."""

    endpoint: str
    replay_endpoint: str | None
    topic: str


class EngineCoreReady(msgspec.Struct, array_like=True, tag="ready"):
    """First frame on every connection, once the model is loaded and the KV cache is made."""

    pid: int
    engine_index: int
    num_kv_blocks: int
    block_size: int
    max_model_len: int
    kv_cache_bytes: int
    effective_config: dict[str, object]
    """The engine's configuration with every default filled in."""
    incarnation: str = ""
    """Random; another one after a restart, which leaves the KV cache empty."""
    kv_events: KVEventSockets | None = None
    """None if no events are published, or to a socket of someone else's."""


class EngineCoreFailed(msgspec.Struct, array_like=True, tag="failed"):
    """The last frame of a core whose executor failed, such as when a rank was killed."""

    error: str


FromCore = EngineCoreOutputs | EngineCoreReady | EngineCoreFailed
