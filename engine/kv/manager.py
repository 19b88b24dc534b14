"""Gives requests their blocks: prefix hits, allocation, publication, sliding windows."""

import dataclasses
from collections.abc import Sequence

from pagelet.engine.kv.block_pool import BlockPool, KVBlock
from pagelet.engine.kv.spec import KVLayout
from pagelet.engine.scheduler.request import Request
from pagelet.protocol.block_hash import ROOT, extra_keys_bytes

LEAST_COPIED = 2
"""Prompts that have nothing in common begin with the same token, for which no page is copied."""


@dataclasses.dataclass(frozen=True)
class PrefixHit:
    """Cached blocks of a prefix, for each group, and how many tokens there are of it."""

    blocks: list[list[KVBlock]]
    num_tokens: int
    begun: Sequence[KVBlock] = ()
    """For each group a block whose first tokens are the next ones of the prefix, beyond `blocks`:
    the sequence gets a copy of it, to go on from there."""


class KVCacheManager:
    """Block tables over one `BlockPool`, one table a KV group for each request."""

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        record_events: bool = False,
    ) -> None:
        self.layout = layout
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks, len(layout.groups), record_events)
        self._windows = [group.sliding_window for group in layout.groups]
        self._hybrid = any(self._windows)
        self._num_groups = len(self._windows)

    def blocks_needed(self, num_tokens: int, step_tokens: int) -> int:
        """Most blocks that a sequence of `num_tokens` holds at once, if each step computes at most
        `step_tokens` of it (two steps may be in flight)."""
        total = 0
        for window in self._windows:
            held = num_tokens if window is None else min(num_tokens, window + 2 * step_tokens)
            slack = 0 if window is None or held == num_tokens else 1
            total += -(-held // self.block_size) + slack
        return total

    def find_hit(self, request: Request) -> PrefixHit:
        """The longest cached prefix, of whole blocks and of a block's first tokens, always short of
        the last token, since at least one token must be computed to have logits."""
        empty = PrefixHit([[] for _ in self._windows], 0)
        if not self.enable_prefix_caching or request.needs_every_state:
            return empty
        request.update_hashes(self.block_size)
        hashes = request.block_hashes[: (len(request.token_ids) - 1) // self.block_size]
        length, found = len(hashes), -1
        while length != found:  # each pass can only shorten it; one pass suffices without windows
            found = length
            for group, window in enumerate(self._windows):
                length = self._group_hit(group, window, hashes[:length])
        blocks = [
            self._hit_blocks(group, window, hashes[:length])
            for group, window in enumerate(self._windows)
        ]
        begun, num_begun = self._begun_block(request, length)
        return PrefixHit(blocks, length * self.block_size + num_begun, begun)

    def _begun_block(self, request: Request, index: int) -> tuple[Sequence[KVBlock], int]:
        """Cached blocks, one for each group, that begin as the request's block of this index does,
        all blocks before it being cached; and for how many tokens. None if it is for few."""
        start = index * self.block_size
        token_ids = request.token_ids[
            start : min(start + self.block_size, len(request.token_ids) - 1)
        ]
        if len(token_ids) < LEAST_COPIED:
            return (), 0
        parent = request.block_hashes[index - 1] if index else ROOT
        extras = extra_keys_bytes(request.extra_keys.get(index, ()))
        groups = range(self._num_groups)
        for block_hash, count in self.pool.continuations.begin_with(parent, token_ids, extras):
            if count < LEAST_COPIED:
                break
            found = [self.pool.lookup(group, block_hash) for group in groups]
            blocks = [block for block in found if block is not None]
            if len(blocks) == self._num_groups:
                return blocks, count
        return (), 0

    def _group_hit(self, group: int, window: int | None, hashes: Sequence[bytes]) -> int:
        lookup = self.pool.lookup
        if window is None:
            for index, block_hash in enumerate(hashes):
                if lookup(group, block_hash) is None:
                    return index
            return len(hashes)
        # The next token sees window - 1 tokens before it: that many must be cached, no more.
        needed = max(1, -(-(window - 1) // self.block_size))
        run = 0
        for index in range(len(hashes) - 1, -1, -1):
            run = run + 1 if lookup(group, hashes[index]) is not None else 0
            if run == needed:
                return index + needed
        return run

    def _hit_blocks(self, group: int, window: int | None, hashes: Sequence[bytes]) -> list[KVBlock]:
        null = self.pool.null_block
        if window is None:
            return [self._cached(group, block_hash) for block_hash in hashes]
        needed = max(1, -(-(window - 1) // self.block_size))
        first = max(0, len(hashes) - needed)
        return [null] * first + [self._cached(group, block_hash) for block_hash in hashes[first:]]

    def _cached(self, group: int, block_hash: bytes) -> KVBlock:
        block = self.pool.lookup(group, block_hash)
        assert block is not None
        return block

    def allocate(
        self, request: Request, num_tokens: int, hit: PrefixHit | None = None, spare: int = 0
    ) -> list[list[int]] | None:
        """Makes room for `num_tokens` tokens after those computed (or after the hit, for a request
        that has no blocks).

        Returns the ids of the blocks that each group's table gained, or None, with nothing changed,
        if the pool would then have fewer than `spare` free blocks.
        """
        if hit is None:
            if self._hybrid:
                self._free_outside_window(request)
            computed = request.num_computed_tokens
        else:
            computed = hit.num_tokens
        total_blocks = -(-(computed + num_tokens) // self.block_size)
        tables = request.blocks if hit is None else hit.blocks
        wanted = [total_blocks - len(table) for table in tables]
        missing = sum(wanted)
        available = self.pool.free_queue.size - spare
        if hit is not None:
            available -= sum(
                block.ref_count == 0
                for table in hit.blocks
                for block in table
                if block is not self.pool.null_block
            )
        if missing > available:
            return None
        if hit is None:
            return self._extend(request, wanted)
        for table in hit.blocks:
            self.pool.touch(block for block in table if block is not self.pool.null_block)
        self.pool.refresh(hit.begun)
        request.blocks = [list(table) for table in hit.blocks]
        request.num_published_blocks = hit.num_tokens // self.block_size
        self._extend(request, wanted)
        return [[block.block_id for block in table] for table in request.blocks]

    def copies(self, request: Request, hit: PrefixHit) -> list[tuple[int, int]]:
        """Ids of the blocks that a hit's request goes on from, and of its own ones that have to be
        made like them before a step writes to any block: the former may be others' by then."""
        return [
            (block.block_id, table[len(whole)].block_id)
            for block, table, whole in zip(hit.begun, request.blocks, hit.blocks, strict=False)
        ]

    def _extend(self, request: Request, wanted: list[int]) -> list[list[int]]:
        gained = []
        for table, count in zip(request.blocks, wanted, strict=True):
            blocks = self.pool.allocate(count)
            table += blocks
            gained.append([block.block_id for block in blocks])
        return gained

    def needs_blocks(self, request: Request, num_tokens: int) -> bool:
        """Whether the request's tables are too short for its next `num_tokens` tokens."""
        room = len(request.blocks[0]) * self.block_size
        return request.num_computed_tokens + num_tokens > room

    def _free_outside_window(self, request: Request) -> None:
        """Gives back blocks that no later token of the request attends to. Only confirmed tokens
        count, so that a block is published before it is given back."""
        null = self.pool.null_block
        for table, window in zip(request.blocks, self._windows, strict=True):
            if window is None:
                continue
            last = min(
                max(0, request.num_confirmed_tokens - window + 1) // self.block_size, len(table)
            )
            freed = []
            for index in range(last - 1, -1, -1):
                if table[index] is null:
                    break
                freed.append(table[index])
                table[index] = null
            self.pool.free(freed)

    def publish(self, request: Request) -> None:
        """Makes the full blocks of the confirmed tokens findable for other requests."""
        first = request.num_published_blocks
        last = request.num_confirmed_tokens // self.block_size
        if not self.enable_prefix_caching or last <= first:
            return
        request.update_hashes(self.block_size)
        hashes = request.block_hashes
        extra_keys = [request.extra_keys.get(index) for index in range(first, last)]
        for group, window in enumerate(self._windows):
            self.pool.publish(
                group,
                request.blocks[group][first:last],
                hashes[first:last],
                hashes[first - 1] if first else None,
                extra_keys,
                request.token_ids[first * self.block_size : last * self.block_size],
                self.block_size,
                "full_attention" if window is None else "sliding_window",
                window,
            )
        request.num_published_blocks = last

    def free(self, request: Request) -> None:
        """Gives all of a request's blocks back; published ones stay findable until evicted."""
        for table in request.blocks:
            self.pool.free(reversed(table))
        request.blocks = []
        request.num_published_blocks = 0
