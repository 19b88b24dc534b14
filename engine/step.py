"""What crosses between scheduler and runner: the plan of one step, and what came of it.

Everything that a step must know travels in `SchedulerOutput`; a runner keeps one state row a
request and needs no other message. Both are msgpack-encodable, since workers may be processes.
"""

from collections.abc import Sequence

import msgspec

from pagelet.protocol.engine import TokenLogprobs
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.pooling import PoolingParams
from pagelet.protocol.sampling import SamplingParams

MAX_DRAFT_TOKENS = 64
"""Of all requests in one step: each has logits of its own, for which memory is set aside. With more
requests than that a step is bound by arithmetic, and drafts bring little."""


class NewRequestData(msgspec.Struct, array_like=True):
    """A request that the runner does not hold: new, or resumed after a preemption."""

    request_id: int
    token_ids: list[int]
    """All known tokens: the prompt, then what was generated before a preemption."""
    num_prompt_tokens: int
    params: SamplingParams
    eos_token_ids: list[int]
    block_ids: list[list[int]]
    """Block table of each KV group."""
    pooling: PoolingParams | None = None
    """Where the last known token's step brings a vector in place of a sampled token."""
    lora: LoraAdapter | None = None
    copied_blocks: Sequence[tuple[int, int]] = ()
    """Blocks that others have or had, and of `block_ids` those that begin as copies of them. All of
    a step are read before it writes to any block."""


class ScheduledRequest(msgspec.Struct, array_like=True):
    """One request's share of a step: its tokens [num_computed, num_computed + num_tokens), drafts
    included.

    Token ids beyond those the runner was given are the ones that it sampled itself in earlier
    steps, perhaps not yet known to the scheduler (asynchronous scheduling)."""

    request_id: int
    num_computed_tokens: int
    num_tokens: int
    samples: bool
    """Whether these tokens go up to the last known one, so that the next is sampled."""
    new_block_ids: list[list[int]] | None = None
    """Blocks appended to the table of each KV group in this step."""
    draft_token_ids: Sequence[int] = ()
    """The last of these tokens, where they are guesses: a token is sampled after the last known one
    and after each guess, and counts up to the first that differs from its guess."""
    num_proposals: int = 0
    """How many tokens a draft model is to propose after this step's; in the middle of a prefill it
    only reads along."""


class SchedulerOutput(msgspec.Struct, array_like=True):
    """One step's plan."""

    step: int
    new_requests: list[NewRequestData]
    scheduled: list[ScheduledRequest]
    """Requests of this step, in batch order; a request of `new_requests` is here too."""
    dropped_request_ids: list[int]
    """State rows to free before anything else: finished, aborted or preempted requests."""
    num_tokens: int
    constrained: list[int] = []
    """Which of `scheduled` draw a token that a grammar constrains: the runner waits for their
    `TokenMasks` before it draws any."""


class TokenMasks(msgspec.Struct, array_like=True):
    """Which tokens a step may draw. They follow the plan, since they depend on the tokens of the
    step before; the forward pass need not wait for them."""

    words: bytes
    """For each of the plan's `constrained` a row of int32 words, a bit for each token id; then one
    for the token after each of its drafts."""


class SampledToken(msgspec.Struct, array_like=True):
    """What the runner brings back for one scheduled request."""

    request_id: int
    token_ids: list[int]
    """The sampled tokens: those that equal their drafts, and the one after; empty in the middle of
    a prefill."""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """Logprobs of the prompt tokens that follow the computed ones (position p predicts p + 1)."""
    error: str | None = None
    """Why this request cannot go on, such as logits that are not numbers; others do."""
    pooled: bytes | None = None
    """The vector of a request that asked for one, float32."""
    draft_token_ids: Sequence[int] = ()
    """What a draft model says comes next."""


class RunnerOutput(msgspec.Struct, array_like=True):
    """One step's results, in the order of `SchedulerOutput.scheduled`."""

    step: int
    sampled: list[SampledToken]


class RunnerInfo(msgspec.Struct, array_like=True, frozen=True):
    """What a runner runs on, once it is loaded."""

    device: str
    """cpu, cuda, or simulated."""
    dtype: str
    """Of weights and activations."""
    kv_cache_dtype: str
    quantization: str
    """As in the options, or none where what runs has no quantised weights."""
    kernels: str
    """Which implementation runs, or why not the quickest, in words."""
    held_bytes: int = 0
    """Of a GPU's memory, that each rank's tensors hold between steps, at least."""
    step_bytes: int = 0
    """Of a GPU's memory, that a step may need of it beside that, at most."""
