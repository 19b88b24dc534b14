"""From a demand to a number of replicas, over time: the rules of Kubernetes' autoscaler (tolerance,
windows of stabilisation, a limit of growth), for where there is none.

Whatever is not known holds the count. What is known in part is a lower bound, which is good enough
to grow by, and never to shrink.
"""

import collections
import math
from typing import Final

import msgspec

TOLERANCE: Final = 0.1
"""A demand so little off the count, as a share of it, changes nothing."""
_GROW_SECONDS: Final = 15.0
"""Within which replicas at most double, or become `_GROW_BY` more."""
_GROW_BY: Final = 4
_ROUNDING: Final = 1e-6


class ScalingBounds(msgspec.Struct, kw_only=True, frozen=True):
    """Between which counts, and how soon."""

    min_replicas: int
    max_replicas: int
    scale_up_seconds: float = 0.0
    """For which more replicas must have been asked for."""
    scale_down_seconds: float = 300.0
    """For which none of them must have been asked for."""


class Scaler:
    """Decides for one pool. `now` is any monotonic clock in seconds."""

    def __init__(self) -> None:
        self._asked: collections.deque[tuple[float, int]] = collections.deque()
        """What was asked for, and when; the count where that was not known."""
        self._counts: collections.deque[tuple[float, int]] = collections.deque()

    def decide(
        self,
        bounds: ScalingBounds,
        current: int,
        demand: float | None,
        now: float,
        *,
        is_complete: bool = True,
        scheduled: int = 0,
    ) -> int:
        """How many replicas there shall be, of which there are to be `current`.

        `demand` is in replicas; None if nothing is known of it, and not `is_complete` if it may be
        more than that. `scheduled` are asked for at this time whatever the demand is.
        """
        asked = current if demand is None else _rounded(demand, current)
        asked = max(asked, scheduled)
        if not is_complete:
            asked = max(asked, current)
        if not self._asked:
            self._asked.append((now, current))  # whoever decided before had a reason
        self._asked.append((now, asked))
        up = min(self._within(now, bounds.scale_up_seconds))
        down = max(self._within(now, bounds.scale_down_seconds))
        _forget(self._asked, now - max(bounds.scale_up_seconds, bounds.scale_down_seconds))
        _forget(self._counts, now - _GROW_SECONDS)
        wanted = current
        if up > current:
            wanted = min(up, self._most(current))
        elif current == 0 and asked:
            wanted = 1  # somebody waits: what is left to ask is how many
        elif down < current:
            wanted = down
        wanted = min(max(wanted, bounds.min_replicas), bounds.max_replicas)
        self._counts.append((now, current))
        return wanted

    def _within(self, now: float, seconds: float) -> list[int]:
        """What was asked for since then, now included."""
        recent = [asked for when, asked in self._asked if when >= now - seconds]
        return recent[-1:] if seconds == 0 else recent

    def _most(self, current: int) -> int:
        least = min([current, *(count for _, count in self._counts)])
        return max(2 * least, least + _GROW_BY, current)


def _forget(history: collections.deque[tuple[float, int]], before: float) -> None:
    while history and history[0][0] < before:
        history.popleft()


def _rounded(demand: float, current: int) -> int:
    if current and abs(demand / current - 1) <= TOLERANCE:
        return current
    return math.ceil(demand - _ROUNDING) if demand > _ROUNDING else int(demand > 0)
