"""The pool of KV blocks: ref counts, the free queue, and the map from block hash to block.

Follows vLLM V1's scheme: one doubly linked free queue whose order is the eviction order; a cached
block whose ref count falls to zero stays findable until its turn comes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pagelet.engine.kv.continuations import Continuations
from pagelet.engine.kv.residency import ResidencySampler
from pagelet.protocol.block_hash import ROOT, ExtraKey
from pagelet.protocol.kv_events import BlockRemoved, BlockStored, KVEvent

NULL_BLOCK_ID = 0


class KVBlock:
    """One block id. `prev` and `next` are set only while it is in the free queue."""

    __slots__ = ("block_hash", "block_id", "group", "next", "prev", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: bytes | None = None
        self.group = 0
        self.prev: KVBlock | None = None
        self.next: KVBlock | None = None


class FreeBlockQueue:
    """Free blocks in eviction order, head first; every operation is O(1)."""

    def __init__(self, blocks: Iterable[KVBlock]) -> None:
        self._ends = KVBlock(-1)
        self._ends.prev = self._ends.next = self._ends
        self.size = 0
        for block in blocks:
            self.append(block)

    def popleft(self) -> KVBlock:
        """Takes the block to evict next."""
        block = self._ends.next
        assert block is not None
        assert block is not self._ends, "no free block"
        self.remove(block)
        return block

    def remove(self, block: KVBlock) -> None:
        """Takes out a block from anywhere."""
        before, after = block.prev, block.next
        assert before is not None
        assert after is not None
        before.next, after.prev = after, before
        block.prev = block.next = None
        self.size -= 1

    def append(self, block: KVBlock) -> None:
        """Adds a block that is evicted last."""
        last = self._ends.prev
        assert last is not None
        self._insert(last, block, self._ends)

    def appendleft(self, block: KVBlock) -> None:
        """Adds a block that is taken first."""
        first = self._ends.next
        assert first is not None
        self._insert(self._ends, block, first)

    def _insert(self, before: KVBlock, block: KVBlock, after: KVBlock) -> None:
        before.next = after.prev = block
        block.prev, block.next = before, after
        self.size += 1

    def __iter__(self) -> Iterator[KVBlock]:
        block = self._ends.next
        while block is not None and block is not self._ends:
            yield block
            block = block.next


class BlockPool:
    """`num_blocks` blocks, of which block 0 is the null block: never allocated, never written for
    a live token; it fills table entries that lie outside of a sliding window.

    Invariant: every block but the null block is either in the free queue with ref count 0 or has
    a positive ref count.
    """

    def __init__(self, num_blocks: int, num_groups: int, record_events: bool = False) -> None:
        assert num_blocks >= 2, "the pool needs one block beside the null block"
        self.blocks = [KVBlock(index) for index in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.ref_count = 1
        self.free_queue = FreeBlockQueue(self.blocks[1:])
        self.num_usable = num_blocks - 1
        self._cached: list[dict[bytes, KVBlock]] = [{} for _ in range(num_groups)]
        self.continuations = Continuations()
        """Of the first group, which every block of another has its like in."""
        self.residency = ResidencySampler()
        self._record_events = record_events
        self._events: list[KVEvent] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, cached ones without a user included."""
        return self.free_queue.size

    @property
    def usage(self) -> float:
        """Share of blocks in use by requests, 0 to 1."""
        return 1.0 - self.free_queue.size / self.num_usable

    @property
    def num_cached(self) -> int:
        """Blocks that a prefix could hit."""
        return sum(map(len, self._cached))

    def lookup(self, group: int, block_hash: bytes) -> KVBlock | None:
        """The cached block of a group with this hash."""
        return self._cached[group].get(block_hash)

    def allocate(self, count: int) -> list[KVBlock]:
        """Takes `count` blocks (at most `num_free`) with ref count 1, evicting what they cached."""
        taken = []
        for _ in range(count):
            block = self.free_queue.popleft()
            if block.block_hash is not None:
                self._evict(block)
            block.ref_count = 1
            self.residency.allocated(block.block_id)
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[KVBlock]) -> None:
        """Adds a user to cached blocks."""
        for block in blocks:
            if block.ref_count == 0:
                self.free_queue.remove(block)
            self.residency.hit(block.block_id)
            block.ref_count += 1

    def refresh(self, blocks: Iterable[KVBlock]) -> None:
        """Cached blocks were of use: those that have no user are evicted last."""
        for block in blocks:
            self.residency.hit(block.block_id)
            if block.ref_count == 0:
                self.free_queue.remove(block)
                self.free_queue.append(block)

    def free(self, blocks: Iterable[KVBlock]) -> None:
        """Takes a user from each block. Give a request's blocks last first, so that the tail of a
        prefix is evicted before its head; a block that caches nothing is reused before all."""
        for block in blocks:
            if block is self.null_block:
                continue
            block.ref_count -= 1
            assert block.ref_count >= 0, f"block {block.block_id} freed twice"
            if block.ref_count == 0:
                if block.block_hash is None:
                    self.free_queue.appendleft(block)
                else:
                    self.residency.released(block.block_id)
                    self.free_queue.append(block)

    def publish(
        self,
        group: int,
        blocks: Sequence[KVBlock],
        hashes: Sequence[bytes],
        parent: bytes | None,
        extra_keys: Sequence[Sequence[ExtraKey] | None],
        token_ids: Sequence[int],
        block_size: int,
        kind: str,
        sliding_window: int | None,
    ) -> None:
        """Makes full blocks, whose KV is written, findable. A hash that is cached already keeps
        its first block. `extra_keys` are what entered each block's hash besides its tokens."""
        cached, stored = self._cached[group], 0
        for index, (block, block_hash) in enumerate(zip(blocks, hashes, strict=True)):
            if block is self.null_block or block.block_hash is not None or block_hash in cached:
                continue
            block.block_hash, block.group = block_hash, group
            cached[block_hash] = block
            if group == 0:
                before = hashes[index - 1] if index else parent or ROOT
                tokens = token_ids[index * block_size : (index + 1) * block_size]
                self.continuations.add(block_hash, before, tokens)
            stored += 1
        if self._record_events and stored:
            self._events.append(
                BlockStored(
                    block_hashes=list(hashes),
                    parent_block_hash=parent,
                    token_ids=list(token_ids),
                    block_size=block_size,
                    medium="GPU",
                    extra_keys=_event_extra_keys(extra_keys),
                    group_idx=group,
                    kv_cache_spec_kind=kind,
                    kv_cache_spec_sliding_window=sliding_window,
                )
            )

    def _evict(self, block: KVBlock) -> None:
        assert block.block_hash is not None
        del self._cached[block.group][block.block_hash]
        if block.group == 0:
            self.continuations.remove(block.block_hash)
        self.residency.evicted(block.block_id)
        if self._record_events:
            self._events.append(
                BlockRemoved(block_hashes=[block.block_hash], medium="GPU", group_idx=block.group)
            )
        block.block_hash = None

    def take_events(self) -> list[KVEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def check(self) -> None:
        """Asserts the invariant; O(number of blocks), for tests and debugging."""
        free = list(self.free_queue)
        assert len(free) == self.free_queue.size == len({b.block_id for b in free})
        assert all(block.ref_count == 0 for block in free)
        used = sum(block.ref_count > 0 for block in self.blocks[1:])
        assert len(free) + used == self.num_usable, "free + used must equal total"
        for group, cached in enumerate(self._cached):
            for block_hash, block in cached.items():
                assert (block.block_hash, block.group) == (block_hash, group)


def _event_extra_keys(extra_keys: Sequence[Sequence[ExtraKey] | None]) -> list[Any] | None:
    """As vLLM's events have them: each block's values, or None; left out where no block has any."""
    if not any(extra_keys):
        return None
    return [keys and [value for _, value in keys] for keys in extra_keys]
