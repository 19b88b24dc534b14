"""Limits of tenants: requests and tokens a minute, and answers in flight.

Rates are token buckets: a tenant may use a minute's worth at once, then as it comes back. What
an answer will cost is not known before it ends, so its estimate is reserved first and settled
with what was really read and written; a tenant that used more than was estimated waits longer.
"""

import time
from typing import Final, Literal

from pagelet.protocol.openai.errors import ApiError, retry_after
from pagelet.protocol.openai.rate_limits import format_duration, rate_limit_headers
from pagelet.router.tenants.counters import CounterTable, Usage
from pagelet.router.tenants.tenant import Tenant

_FIRST_MEAN: Final = 256.0
"""Tokens that an answer without a limit of its own is thought to have, until some were seen."""
_NEWEST: Final = 0.05
"""Weight of the newest answer in the mean."""
_ROUNDING: Final = 1e-6
"""Of a limit: what sums of fractions may be off by, so that waiting as told is enough."""
_IN_FLIGHT_RETRY: Final = 1.0
"""Seconds after which a client with too many answers in flight may try again."""
_NEVER: Final = {"x-should-retry": "false"}
"""What OpenAI's own clients heed."""

Limited = Literal["requests", "tokens"]


class Limiter:
    """Admits requests of tenants. `counters` makes its limits those of the whole router."""

    def __init__(self, counters: CounterTable) -> None:
        self._counters = counters
        self._mean_answer: dict[str, float] = {}

    def open(self, tenant: Tenant, now: float | None = None) -> "Grant":
        """Counts one request. Raises 429 if its tenant sends too many, with the headers that else
        are the grant's."""
        now = time.monotonic() if now is None else now
        grant = Grant(self, self._counters, tenant)
        if not tenant.limits.bound_nothing:
            grant.count_request(now)
        return grant

    def expected_tokens(
        self, tenant: str, answers: int, prompt_tokens: int, max_tokens: int | None
    ) -> float:
        """What a request will probably read and write. `reserve` counts all of `max_tokens`; most
        answers end long before it."""
        mean = self.mean_answer(tenant)
        return prompt_tokens + answers * (mean if max_tokens is None else min(mean, max_tokens))

    def mean_answer(self, tenant: str) -> float:
        """Tokens that an answer of a tenant has on average."""
        return self._mean_answer.get(tenant, _FIRST_MEAN)

    def learn_answer(self, tenant: str, tokens: float) -> None:
        """Takes an answer into its tenant's mean."""
        mean = self._mean_answer.get(tenant)
        self._mean_answer[tenant] = tokens if mean is None else mean + _NEWEST * (tokens - mean)


class Grant:
    """What one request takes of its tenant's limits: made by `Limiter.open`, ended by `close`."""

    def __init__(self, limiter: Limiter, counters: CounterTable, tenant: Tenant) -> None:
        self._limiter = limiter
        self._counters = counters
        self._tenant = tenant
        self._limits = tenant.limits
        self._answers = 0
        self._reserved = 0.0
        self._headers: list[tuple[str, str]] = []

    def headers(self) -> list[tuple[str, str]]:
        """`x-ratelimit-*`, for every answer to this request; as of its last change."""
        return self._headers

    def count_request(self, now: float) -> None:
        """Takes one of the minute's requests. Raises 429."""
        limit = self._limits.requests_per_minute
        with self._counters.usage(self._tenant.name, now) as usage:
            self._run_down(usage, now)
            refused = limit is not None and usage.requests + 1 > limit + _ROUNDING
            if not refused:
                usage.requests += 1
            self._conclude(usage, now)
            used = usage.requests
        if refused and limit is not None:
            error = self._rate_error("requests", limit, used, 1)
            # There will be no grant to take them from.
            error.headers = {**(error.headers or {}), **dict(self._headers)}
            raise error

    def reserve(
        self, answers: int, prompt_tokens: int, max_tokens: int | None, now: float | None = None
    ) -> None:
        """Takes `answers` in flight and the tokens that they are thought to read and write. Raises
        429, and then takes nothing."""
        if self._limits.bound_nothing:
            self._answers = answers
            return
        now = time.monotonic() if now is None else now
        each = self._limiter.mean_answer(self._tenant.name) if max_tokens is None else max_tokens
        tokens = prompt_tokens + answers * each
        most_tokens, most_answers = self._limits.tokens_per_minute, self._limits.concurrency
        with self._counters.usage(self._tenant.name, now) as usage:
            self._run_down(usage, now)
            used, in_flight = usage.tokens, usage.in_flight
            crowded = most_answers is not None and in_flight + answers > most_answers
            refused = most_tokens is not None and used + tokens > most_tokens + _ROUNDING
            if not crowded and not refused:
                usage.tokens += tokens
                usage.in_flight += answers
                self._answers, self._reserved = answers, tokens
            self._conclude(usage, now)
        if crowded and most_answers is not None:
            raise self._concurrency_error(most_answers, in_flight, answers)
        if refused and most_tokens is not None:
            raise self._rate_error("tokens", most_tokens, used, tokens)

    def settle(self, prompt_tokens: int, generated_tokens: int, now: float | None = None) -> None:
        """The answers are over, and this is what was really read and written in all of them, in
        place of the estimate. The first call counts."""
        if self._answers:
            self._limiter.learn_answer(self._tenant.name, generated_tokens / self._answers)
            self._settle(prompt_tokens + generated_tokens, self._answers, now)

    def close(self, now: float | None = None) -> None:
        """The answers are over; later calls do nothing. Without `settle` nothing was used."""
        if self._answers:
            self._settle(0.0, self._answers, now)

    def _settle(self, tokens: float, answers: int, now: float | None) -> None:
        if self._limits.bound_nothing:
            self._answers = 0
            return
        now = time.monotonic() if now is None else now
        with self._counters.usage(self._tenant.name, now) as usage:
            self._run_down(usage, now)
            usage.tokens = max(0.0, usage.tokens + tokens - self._reserved)
            usage.in_flight -= answers
            self._conclude(usage, now)
        self._answers, self._reserved = 0, 0.0

    def _run_down(self, usage: Usage, now: float) -> None:
        """What was used comes back at the limit's pace; what has no limit is not counted."""
        elapsed = max(0.0, now - usage.updated)
        usage.requests = _left(usage.requests, self._limits.requests_per_minute, elapsed)
        usage.tokens = _left(usage.tokens, self._limits.tokens_per_minute, elapsed)
        usage.updated = now

    def _conclude(self, usage: Usage, now: float) -> None:
        """Notes when the row expires, and what clients are told."""
        self._headers, longest = [], 0.0
        limited: tuple[tuple[Limited, float, int | None], ...] = (
            ("requests", usage.requests, self._limits.requests_per_minute),
            ("tokens", usage.tokens, self._limits.tokens_per_minute),
        )
        for what, used, limit in limited:
            if limit is not None:
                reset = used * 60 / limit
                longest = max(longest, reset)
                self._headers += rate_limit_headers(what, limit, limit - used, reset)
        usage.expires = now + longest

    def _rate_error(self, what: Limited, limit: int, used: float, wanted: float) -> ApiError:
        head = (
            f"Rate limit reached for tenant {self._tenant.name!r} on {what} per min: "
            f"Limit {limit}, Used {used:.0f}, Requested {wanted:.0f}."
        )
        if wanted > limit:
            advice = "Ask for fewer max_tokens or send a shorter prompt: it can never be granted."
            return _too_many(f"{head} {advice}", what, _NEVER)
        seconds = (used + wanted - limit) * 60 / limit
        wait = {"Retry-After": retry_after(seconds)}
        return _too_many(f"{head} Please try again in {format_duration(seconds)}.", what, wait)

    def _concurrency_error(self, limit: int, in_flight: int, wanted: int) -> ApiError:
        head = (
            f"Tenant {self._tenant.name!r} has {in_flight} answers in flight of at most {limit}, "
            f"and this request asks for {wanted}"
        )
        if wanted > limit:
            return _too_many(f"{head}: lower n or send fewer prompts.", "requests", _NEVER)
        wait = {"Retry-After": retry_after(_IN_FLIGHT_RETRY)}
        return _too_many(f"{head}: try again when one has ended.", "requests", wait)


def _too_many(message: str, what: Limited, headers: dict[str, str]) -> ApiError:
    return ApiError(
        429, message, type=what, code="rate_limit_exceeded", headers=headers, reason=f"{what}_limit"
    )


def _left(used: float, limit: int | None, elapsed: float) -> float:
    return 0.0 if limit is None else max(0.0, used - elapsed * limit / 60)
