"""KV events in vLLM's ZMQ format: which blocks a replica's prefix cache gained and lost.

A message has three parts: topic, 8-byte big-endian sequence number, msgpack of `KVEventBatch`.
Batches are arrays and each event is a map with its tag under `type`, as vLLM 0.32 sends them (its
pull request 42892).
"""

from collections.abc import Sequence
from typing import Any

import msgspec

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


def _absent() -> None:
    """A default that is sent all the same: vLLM always sends these fields, and some readers refuse
    an event without them."""


class BlockStored(msgspec.Struct, kw_only=True, omit_defaults=True, tag=True):
    """Consecutive full blocks were published; `token_ids` are those of all of them.

    Hashes are integers in the events of some engines."""

    block_hashes: Sequence[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = msgspec.field(default_factory=_absent)
    medium: str | None = msgspec.field(default_factory=_absent)
    lora_name: str | None = msgspec.field(default_factory=_absent)
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, kw_only=True, omit_defaults=True, tag=True):
    """Cached blocks were evicted."""

    block_hashes: Sequence[bytes | int]
    medium: str | None = msgspec.field(default_factory=_absent)
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, kw_only=True, omit_defaults=True, tag=True):
    """The whole prefix cache was reset."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True):
    """All events of one engine step; `ts` is Unix time in seconds."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(KVEventBatch)


def decode_batch(payload: bytes) -> KVEventBatch:
    """Reads a batch. Raises `msgspec.ValidationError` for anything else. Fields that only other
    engines know are ignored."""
    return _decoder.decode(payload)
