"""Bounds on trying again: a fleet in trouble must not get more requests than one in good health."""

import math
from collections import deque
from typing import Final

_WINDOW: Final = 10
"""Seconds of requests that the budget is a share of."""
_ALWAYS: Final = 10
"""Retries in a window that even a router with few requests may make."""

MOST_DEATHS: Final = 2
"""Replicas that may fail while they run one request. Were it the request that kills them, it would
otherwise kill one after the other."""


class RetryBudget:
    """Retries of requests that no replica has begun with, as a share of all requests.

    A stream that has begun is not given up for it: it has bounds of its own."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._seconds: deque[list[int]] = deque()  # [second, requests, retries], oldest first

    def on_request(self, now: float) -> None:
        """Counts a new request."""
        self._second(now)[1] += 1

    def take(self, now: float) -> bool:
        """Counts a retry if there may be one more."""
        second = self._second(now)
        requests = sum(entry[1] for entry in self._seconds)
        retries = sum(entry[2] for entry in self._seconds)
        if retries >= _ALWAYS + math.floor(self._share * requests):
            return False
        second[2] += 1
        return True

    def _second(self, now: float) -> list[int]:
        seconds = self._seconds
        while seconds and seconds[0][0] <= now - _WINDOW:
            seconds.popleft()
        if not seconds or seconds[-1][0] != int(now):
            seconds.append([int(now), 0, 0])
        return seconds[-1]
