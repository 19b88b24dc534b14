"""KV events in vLLM's ZMQ format: which blocks a replica's prefix cache gained and lost.

A message has three parts: topic, 8-byte big-endian sequence number, msgpack of `KVEventBatch`.
Batches are arrays and each event is a map with its tag under `type`, as vLLM 0.32 sends them
(vllm-project/vllm#42892); `decode_batch` reads events as arrays too, as older vLLM sent them.
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


_KINDS: dict[str, type[KVEvent]] = {
    kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}
_decoder = msgspec.msgpack.Decoder(KVEventBatch)


def decode_batch(payload: bytes) -> KVEventBatch:
    """Reads a batch whose events are maps or arrays.

    Raises `msgspec.ValidationError` for anything else. Fields that only other engines know are
    ignored.
    """
    try:
        return _decoder.decode(payload)
    except msgspec.ValidationError:
        raw = msgspec.msgpack.decode(payload, type=tuple[float, list[list[Any]], int | None])
    events: list[KVEvent] = []
    for tag, *values in (entry or [None] for entry in raw[1]):
        if not isinstance(tag, str) or tag not in _KINDS:
            raise msgspec.ValidationError(f"unknown KV event {tag!r}")
        fields = msgspec.structs.fields(_KINDS[tag])
        named = {f.name: v for f, v in zip(fields, values, strict=False)}
        events.append(msgspec.convert({"type": tag, **named}, _KINDS[tag]))
    return KVEventBatch(raw[0], events, raw[2])
