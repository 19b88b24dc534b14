"""The heads of prompts that came of late: which were there before, and how much of all they are."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

_REMEMBERED: Final = 10_000
_FOR_NEW: Final = 30
"""About so many of the newest heads make the share of those that come again."""
_FOR_SHARES: Final = 300
"""About so many of the newest requests make the share of a head: enough that a head that came twice
is not taken for a popular one, and few enough to see a burst while it lasts."""


@dataclass(slots=True)
class _Head:
    came_again: bool
    count: float
    """Of its requests, each worth the less, the older it is; as of request number `at`."""
    at: int


class Heads:
    """Those that were seen."""

    def __init__(self) -> None:
        self._heads: OrderedDict[bytes, _Head] = OrderedDict()
        """Used last is last."""
        self._requests = 0
        # A router that just started assumes that heads come again: others may know them.
        self._num_new = self._num_again = float(_FOR_NEW)

    @property
    def again(self) -> float:
        """Share of the new heads that came again, lately."""
        return self._num_again / self._num_new

    def see(self, head: bytes) -> tuple[bool, float]:
        """Whether a head was there before, and the share of requests that had it before this one,
        lately; remembers it."""
        self._requests += 1
        known = self._heads.pop(head, None)
        if known is None:
            self._heads[head] = _Head(False, 1.0, self._requests)
            kept = 1 - 1 / _FOR_NEW
            self._num_new = kept * self._num_new + 1
            self._num_again *= kept
            if len(self._heads) > _REMEMBERED:
                self._heads.popitem(last=False)
            return False, 0.0
        self._num_again += not known.came_again
        before = known.count * (1 - 1 / _FOR_SHARES) ** (self._requests - known.at)
        known.came_again, known.count, known.at = True, before + 1, self._requests
        self._heads[head] = known
        return True, before / _FOR_SHARES
