"""Block hashes of other engines, translated to ours.

vLLM names blocks by integers or by digests of its own, but its events carry the token ids, so the
same blocks can be hashed as the router hashes prompts. A block's parent is named too; one that is
not known (its own event was lost) leaves its children unknown as well.
"""

from pagelet.protocol.block_hash import ROOT, hash_block
from pagelet.protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
    KVEventBatch,
)


class HashTranslator:
    """Rewrites one publisher's events. It remembers as many hashes as that cache has blocks."""

    def __init__(self) -> None:
        self._ours: dict[bytes | int, bytes] = {}

    def translate(self, batch: KVEventBatch) -> KVEventBatch:
        """The batch with our hashes. Blocks with extra keys (adapters, images, salts) are left out:
        their hash is not of token ids alone."""
        events = [
            translated for event in batch.events if (translated := self._event(event)) is not None
        ]
        return KVEventBatch(batch.ts, events, batch.data_parallel_rank)

    def reset(self) -> None:
        """Forgets all."""
        self._ours.clear()

    def _event(self, event: KVEvent) -> KVEvent | None:
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, BlockRemoved):
            pop = self._ours.pop
            known = [ours for h in event.block_hashes if (ours := pop(h, None)) is not None]
            return BlockRemoved(
                block_hashes=list(known), medium=event.medium, group_idx=event.group_idx
            )
        assert isinstance(event, AllBlocksCleared)
        self.reset()
        return event

    def _stored(self, event: BlockStored) -> BlockStored | None:
        if event.parent_block_hash is None:
            parent = ROOT
        elif (known := self._ours.get(event.parent_block_hash)) is not None:
            parent = known
        else:
            return None
        size, tokens, hashes = event.block_size, event.token_ids, []
        extras = event.extra_keys or [None] * len(event.block_hashes)
        for index, (theirs, extra) in enumerate(zip(event.block_hashes, extras, strict=False)):
            block = tokens[index * size : (index + 1) * size]
            if extra or event.lora_id is not None or event.lora_name or len(block) < size:
                break
            parent = self._ours[theirs] = hash_block(parent, block)
            hashes.append(parent)
        return BlockStored(
            block_hashes=list(hashes),
            parent_block_hash=None,
            token_ids=[],
            block_size=size,
            medium=event.medium,
            group_idx=event.group_idx,
            kv_cache_spec_kind=event.kv_cache_spec_kind,
        )
