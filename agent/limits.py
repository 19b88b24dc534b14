"""What a server takes on: request rates for each client, and a bound on answers in flight."""

import dataclasses
import time
from collections import OrderedDict

from pagelet.protocol.openai.rate_limits import rate_limit_headers

_MAX_CLIENTS = 10_000
"""Clients whose rates are remembered; the one unseen for longest is forgotten first."""


@dataclasses.dataclass(frozen=True, slots=True)
class RateDecision:
    """Whether a request may pass, and what to tell its client. Times are in seconds."""

    allowed: bool
    limit: int
    remaining: int
    reset_after: float
    """Until the whole limit is there again."""
    retry_after: float
    """Until the next request may pass; 0 if one may now."""

    def headers(self) -> list[tuple[str, str]]:
        """Under the names of OpenAI's API."""
        return rate_limit_headers("requests", self.limit, self.remaining, self.reset_after)


class RateLimiter:
    """Token buckets: a client may send a minute's worth at once, then as its bucket refills."""

    def __init__(self, requests_per_minute: int) -> None:
        self._capacity = requests_per_minute
        self._rate = requests_per_minute / 60
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float | None = None) -> RateDecision:
        """Counts one request of `client` at time `now` (by default the monotonic clock)."""
        now = time.monotonic() if now is None else now
        tokens, since = self._buckets.pop(client, (float(self._capacity), now))
        tokens = min(self._capacity, tokens + (now - since) * self._rate)
        allowed = tokens >= 1
        if allowed:
            tokens -= 1
        self._buckets[client] = (tokens, now)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return RateDecision(
            allowed=allowed,
            limit=self._capacity,
            remaining=int(tokens),
            reset_after=(self._capacity - tokens) / self._rate,
            retry_after=max(0.0, (1 - tokens) / self._rate),
        )


class Admission:
    """Counts answers in flight, waiting or running, against a bound (None for no bound)."""

    def __init__(self, bound: int | None) -> None:
        self.bound = bound
        self.in_flight = 0

    def admit(self, answers: int) -> bool:
        """Takes `answers` more, all or none; `release` gives them back."""
        if self.bound is not None and self.in_flight + answers > self.bound:
            return False
        self.in_flight += answers
        return True

    def release(self, answers: int) -> None:
        """Gives back what `admit` took."""
        self.in_flight -= answers
        assert self.in_flight >= 0, "more answers released than admitted"
