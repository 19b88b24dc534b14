"""A circuit breaker: a replica whose answers fail again and again gets no more requests for a while
(Nygard, Release It!, 2007)."""

from typing import Final

_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 30.0


class Breaker:
    """Trips after `most` failures in a row. Then one request may try after a second; each further
    failure doubles the time, and one success closes it. Times are those of one clock."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failures = 0
        self._trips = 0
        self.open_until = float("-inf")

    def success(self) -> None:
        """A request got an answer."""
        self._failures = self._trips = 0

    def failure(self, now: float) -> bool:
        """A request got none. Returns whether the breaker tripped."""
        if now < self.open_until:
            return False  # of a request that was under way, perhaps for the same reason
        self._failures += 1
        if self._failures < self._most:
            return False
        self.open_until = now + min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0**self._trips)
        self._trips += 1
        self._failures = self._most - 1  # the next failure trips it again
        return True
