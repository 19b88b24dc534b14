"""A request as the scheduler sees it."""

import enum

from pagelet.engine.kv.block_pool import KVBlock
from pagelet.engine.speculation.drafting import Drafting
from pagelet.engine.structured.answer import ConstrainedAnswer
from pagelet.protocol.block_hash import (
    ROOT,
    ExtraKey,
    extra_keys_bytes,
    hash_block,
    place_extra_keys,
)
from pagelet.protocol.engine import EngineCoreRequest, TokenLogprobs


class Status(enum.Enum):
    """Where a request is."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    """Waiting again; its blocks are gone and its tokens will be recomputed."""


class Request:
    """Tokens known so far, and how far the KV cache has come.

    `num_computed_tokens` counts what steps already scheduled will have computed; a step's result
    raises `num_confirmed_tokens` to it. With asynchronous scheduling up to `num_inflight` steps lie
    between the two, and `num_pending_tokens` of their sampled tokens are not known yet.
    """

    __slots__ = (
        "awaited_block",
        "block_hashes",
        "blocks",
        "constraint",
        "drafting",
        "eos_token_ids",
        "external_id",
        "extra_keys",
        "lora",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_confirmed_tokens",
        "num_inflight",
        "num_pending_tokens",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_resumed_tokens",
        "order",
        "params",
        "pooling",
        "priority",
        "prompt_logprobs",
        "request_id",
        "scheduled_time",
        "status",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self, core: EngineCoreRequest, max_model_len: int, block_size: int, order: int
    ) -> None:
        self.request_id = core.request_id
        self.external_id = core.external_id
        self.params = core.params
        self.token_ids = core.prompt_token_ids + core.output_token_ids
        self.num_prompt_tokens = len(core.prompt_token_ids)
        self.num_resumed_tokens = len(core.output_token_ids)
        """Generated elsewhere, before the request came here."""
        limit = max_model_len if core.params.max_tokens is None else core.params.max_tokens
        self.max_total_tokens = min(self.num_prompt_tokens + limit, max_model_len)
        self.pooling = core.pooling
        """Set where nothing is generated: the request ends with its prompt."""
        if self.pooling is not None:
            self.max_total_tokens = self.num_prompt_tokens + 1
        self.eos_token_ids = frozenset(() if core.params.ignore_eos else core.eos_token_ids)
        self.stop_token_ids = frozenset(core.params.stop_token_ids)
        self.constraint: ConstrainedAnswer | None = None
        """Its place in the grammar that its answer must match."""
        self.drafting: Drafting | None = None
        """Set where tokens may be guessed."""
        self.priority = core.priority
        self.order = order
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self.num_confirmed_tokens = 0
        self.num_inflight = 0
        self.num_pending_tokens = 0
        self.num_cached_tokens = 0
        self.scheduled_time = 0.0
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            None if core.params.prompt_logprobs is None else [None]
        )
        self.blocks: list[list[KVBlock]] = []
        self.num_published_blocks = 0
        self.awaited_block: bytes | None = None
        """A block that another request is computing and that this one stands aside for."""
        self.block_hashes: list[bytes] = []
        self.lora = core.lora
        extras: list[ExtraKey] = []
        if core.lora is not None:
            extras.append(("adapter", core.lora.digest))
        if core.cache_salt is not None:
            extras.append(("salt", core.cache_salt))
        self.extra_keys = place_extra_keys(
            extras,
            block_size,
            core.shared_prefix_tokens,
        )
        """What besides its tokens enters a block's hash, by the block's index."""

    @property
    def num_target_tokens(self) -> int:
        """Tokens whose KV can be computed: the known ones, and sampled ones on their way."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_generated_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def needs_every_state(self) -> bool:
        """Whether the whole prompt must be computed, also where its blocks are cached."""
        pooling = self.pooling
        return self.prompt_logprobs is not None or (
            pooling is not None and pooling.pooling != "last"
        )

    @property
    def may_forbid_all(self) -> bool:
        """Whether what the request forbids could leave no token to draw."""
        params = self.params
        return self.constraint is not None or bool(
            params.allowed_token_ids or params.bad_word_token_ids
        )

    def update_hashes(self, block_size: int) -> None:
        """Extends `block_hashes` to all full blocks of the known tokens."""
        hashes = self.block_hashes
        for index in range(len(hashes), len(self.token_ids) // block_size):
            tokens = self.token_ids[index * block_size : (index + 1) * block_size]
            extras = self.extra_keys.get(index)
            tagged = b"" if extras is None else extra_keys_bytes(extras)
            hashes.append(hash_block(hashes[-1] if hashes else ROOT, tokens, tagged))
