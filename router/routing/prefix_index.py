"""Which replicas hold which KV blocks, under the engine's own block hashes.

One integer a block: bit s is set if the replica in slot s holds it. An engine's cache gives up the
tail of a prefix before its head (`engine.kv.block_pool`), so what a replica holds of a prompt is a
prefix of it, and bisection finds where each one's ends: a prompt of 100,000 tokens costs a few
dozen lookups, not thousands.

Every operation is bounded. The blocks are spread over shards by hash, each a least-recently-used
dict of bounded size, so that no rehash of a large table ever stops the event loop. A replica that
goes gives up its slot: lookups mask it out at once, and `sweep` wipes its bits shard by shard until
the slot can be taken again.
"""

import itertools
from collections.abc import Iterable, Sequence

_SHARDS = 256
"""By a hash's first byte."""
_EVICTED_AT_ONCE = 1 / 64
"""Share of a full shard that is dropped together, since each look for the oldest skips deleted
entries."""

_CROWDED = 0.75
"""Share of its size from which on a shard's order matters."""


class PrefixIndex:
    """Maps block hashes to sets of replicas. `max_blocks` bounds the blocks of all together."""

    def __init__(self, max_blocks: int) -> None:
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self._shard_size = max(1, -(-max_blocks // _SHARDS))
        self._slots: dict[str, int] = {}
        self._live = 0
        """Mask of the slots in use."""
        self._dead = 0
        """Mask of slots given up whose bits may still be set."""
        self._swept = 0
        """Shards that this round of sweeping has done."""
        self._sweeping = 0
        """Mask of the dead slots of this round."""

    def __len__(self) -> int:
        """Blocks remembered, those of gone replicas included until they are swept."""
        return sum(map(len, self._shards))

    def add_replica(self, replica_id: str) -> None:
        """Makes room for a replica, which holds nothing yet."""
        assert replica_id not in self._slots, replica_id
        taken = self._live | self._dead
        slot = (~taken & (taken + 1)).bit_length() - 1  # the lowest bit that is clear
        self._slots[replica_id] = slot
        self._live |= 1 << slot

    def remove_replica(self, replica_id: str) -> None:
        """Forgets a replica and what it holds."""
        bit = 1 << self._slots.pop(replica_id)
        self._live &= ~bit
        self._dead |= bit

    def reset(self, replica_id: str) -> None:
        """Forgets what a replica holds."""
        self.remove_replica(replica_id)
        self.add_replica(replica_id)

    def store(self, replica_id: str, block_hashes: Iterable[bytes]) -> None:
        """A replica holds these blocks; they count as just used."""
        bit, shards, size = 1 << self._slots[replica_id], self._shards, self._shard_size
        for block_hash in block_hashes:
            shard = shards[block_hash[0]]
            mask = shard.pop(block_hash, 0)
            if not mask and len(shard) >= size:
                for oldest in list(itertools.islice(shard, 1 + int(size * _EVICTED_AT_ONCE))):
                    del shard[oldest]
            shard[block_hash] = mask | bit

    @property
    def is_crowded(self) -> bool:
        """Whether blocks are about to be evicted, so that it matters which were used last."""
        shard = self._shards[0]  # they fill alike
        return len(shard) > _CROWDED * self._shard_size

    def touch(self, block_hashes: Sequence[bytes]) -> None:
        """These blocks of a prompt, first to last, were just used."""
        for block_hash in reversed(block_hashes):
            shard = self._shards[block_hash[0]]
            if mask := shard.pop(block_hash, 0):
                shard[block_hash] = mask

    def discard(self, replica_id: str, block_hashes: Iterable[bytes]) -> None:
        """A replica does not hold these blocks (any more)."""
        keep, shards = ~(1 << self._slots[replica_id]), self._shards
        for block_hash in block_hashes:
            shard = shards[block_hash[0]]
            mask = shard.get(block_hash, 0)
            if mask & keep:
                shard[block_hash] = mask & keep
            elif mask:
                del shard[block_hash]

    def holds(self, replica_id: str, block_hash: bytes) -> bool:
        """Whether a replica holds one block, whatever comes before it."""
        mask = self._shards[block_hash[0]].get(block_hash, 0)
        return bool(mask & 1 << self._slots[replica_id])

    def longest_prefixes(self, block_hashes: Sequence[bytes]) -> dict[str, int]:
        """How many of a prompt's first blocks each replica holds; who holds none is left out."""
        shards, last = self._shards, len(block_hashes) - 1
        if last < 0:
            return {}
        live = self._live
        found: dict[int, int] = {}  # slot -> blocks
        # Segments [low, high] still to look at: the replicas of `mask` hold block `low`, those of
        # `beyond` block `high` too.
        first = block_hashes[0]
        mask = shards[first[0]].get(first, 0) & live
        final = block_hashes[last]
        beyond = shards[final[0]].get(final, 0) & mask
        _note(found, beyond, last + 1)
        pending = [(0, last, mask, beyond)]
        while pending:
            low, high, mask, beyond = pending.pop()
            if mask == beyond:
                continue
            if high - low <= 1:
                _note(found, mask & ~beyond, low + 1)
                continue
            middle = (low + high) // 2
            block_hash = block_hashes[middle]
            between = shards[block_hash[0]].get(block_hash, 0) & mask | beyond
            pending.append((low, middle, mask, between))
            if between:
                pending.append((middle, high, between, beyond))
        return {
            replica_id: found[slot] for replica_id, slot in self._slots.items() if slot in found
        }

    def sweep(self) -> None:
        """Wipes one shard of the bits of gone replicas; call it now and then, as with each
        request. Does nothing when there are none."""
        if not self._sweeping:
            if not self._dead:
                return
            self._sweeping, self._swept = self._dead, 0
        keep = ~self._sweeping
        shard = self._shards[self._swept]
        self._shards[self._swept] = {
            block_hash: mask & keep for block_hash, mask in shard.items() if mask & keep
        }
        self._swept += 1
        if self._swept == _SHARDS:
            self._dead &= keep
            self._sweeping = 0


def _note(found: dict[int, int], mask: int, length: int) -> None:
    """Enters a prefix length for each slot of a mask."""
    while mask:
        bit = mask & -mask
        found[bit.bit_length() - 1] = length
        mask ^= bit
