"""How long cached blocks live, lie idle and wait for reuse, on a sample of them: what tells an
operator whether a larger KV cache would be hit more (the metrics are vLLM's)."""

import time
from collections.abc import Callable

from pagelet.protocol.engine import BlockResidency

SAMPLE_EVERY = 16
"""One block id in so many is watched, which costs next to nothing."""


class _Stay:
    __slots__ = ("began", "gaps", "last_used")

    def __init__(self, now: float) -> None:
        self.began = self.last_used = now
        self.gaps: list[float] = []


class ResidencySampler:
    """Follows sampled blocks from their allocation to their eviction."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stays: dict[int, _Stay] = {}
        self._evicted: list[BlockResidency] = []

    def allocated(self, block_id: int) -> None:
        """A request begins to fill the block."""
        if block_id % SAMPLE_EVERY == 0:
            self._stays[block_id] = _Stay(self._clock())

    def hit(self, block_id: int) -> None:
        """A prefix found the block."""
        stay = self._stays.get(block_id)
        if stay is not None:
            now = self._clock()
            stay.gaps.append(now - stay.last_used)
            stay.last_used = now

    def released(self, block_id: int) -> None:
        """Its last user is gone."""
        stay = self._stays.get(block_id)
        if stay is not None:
            stay.last_used = self._clock()

    def evicted(self, block_id: int) -> None:
        """The block's content is forgotten."""
        stay = self._stays.pop(block_id, None)
        if stay is not None:
            now = self._clock()
            self._evicted.append(BlockResidency(now - stay.began, now - stay.last_used, stay.gaps))

    def take(self) -> list[BlockResidency]:
        """Stays that ended since the last call."""
        ended, self._evicted = self._evicted, []
        return ended
