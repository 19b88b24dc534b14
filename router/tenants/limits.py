"""Limits of tenants: requests and tokens a minute, and answers in flight.

Rates are token buckets: a tenant may use a minute's worth at once, then as it comes back. What
an answer will cost is not known before it ends, so its estimate is reserved first and settled
with what was really read and written; a tenant that used more than was estimated waits longer.
"""

from typing import Final

from pagelet.router.tenants.counters import CounterTable
from pagelet.router.tenants.tenant import Tenant

_FIRST_MEAN: Final = 256.0
"""Tokens that an answer without a limit is thought to have, until some were seen."""
_MEMORY: Final = 0.05
"""Weight of the newest answer in the mean."""
_IN_FLIGHT_RETRY: Final = 1.0


class Limiter:
    """Admits requests of tenants; the counts are those of the whole router."""

    def __init__(self, counters: CounterTable) -> None:
        self._counters = counters
        self._mean_answer: dict[str, float] = {}

    def open(self, tenant: Tenant, now: float | None = None) -> "Grant":
        """Counts one request. Raises 429 if there are too many."""
        raise NotImplementedError

    def mean_answer(self, tenant: str) -> float:
        """Tokens that an answer of a tenant has on average."""
        return self._mean_answer.get(tenant, _FIRST_MEAN)


class Grant:
    """What one request has taken of its tenant's limits. `close` must be called, once or more."""

    def __init__(self, limiter: Limiter, tenant: Tenant) -> None:
        raise NotImplementedError

    def headers(self) -> list[tuple[str, str]]:
        """`x-ratelimit-*` as of now, for every answer to this request."""
        raise NotImplementedError

    def reserve(
        self, answers: int, prompt_tokens: int, max_tokens: int | None, now: float | None = None
    ) -> None:
        """Takes `answers` in flight and the tokens that they are thought to need. Raises 429."""
        raise NotImplementedError

    def settle(self, total_tokens: int, generated_tokens: int, now: float | None = None) -> None:
        """What was really used, in place of the estimate."""
        raise NotImplementedError

    def close(self, now: float | None = None) -> None:
        """The answers are over. Without `settle` nothing was used."""
        raise NotImplementedError
