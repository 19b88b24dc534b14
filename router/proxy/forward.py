"""Gets one request answered: by the best replica, by the next one if that fails, and, for a stream
that has begun, by one that goes on where the last one broke off."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from pagelet.protocol.openai.errors import ApiError, error_type, retry_after
from pagelet.router.http.exchange import Exchange
from pagelet.router.proxy.headers import from_replica
from pagelet.router.proxy.journal import END, Journal, StreamFailed
from pagelet.router.proxy.retries import MOST_DEATHS, RetryBudget
from pagelet.router.proxy.stream import journaled_events, plain_events
from pagelet.router.proxy.usage import TokenCounts, read_usage
from pagelet.router.record import Attempt, RequestRecord
from pagelet.router.replicas.pool import ReplicaLeaves, ReplicaPool
from pagelet.router.replicas.replica import Replica
from pagelet.router.routing.fleet import Ticket
from pagelet.router.routing.types import RouteRequest
from pagelet.router.upstream.client import ConnectFailed, Response, UpstreamTimeout
from pagelet.router.upstream.connection import ConnectionLost, Headers, UpstreamError

_WHOLE_ANSWER_SECONDS: Final = 3600.0
"""For an answer that does not stream, and so begins when it is finished."""
_RETRY_PAUSE: Final = 0.25
"""Before replicas that failed are tried again, when there are no others."""
_REFUSALS: Final = frozenset((429, 502, 503, 504))
_MOST_HOLD: Final = 10.0
"""Seconds for which a replica's Retry-After is believed; probes know better then."""
_ENGINE_DEAD: Final = "engine_unavailable"
"""The code by which a replica says that its engine died, perhaps of this very request."""
_ENGINE_ABSENT: Final = "engine_starting"
"""The code by which it says that its engine is not back yet, and saw nothing of the request."""
_ABSENT_SECONDS: Final = 1.0
"""For which it is then left alone, at least; probes tell when it is ready."""
_USAGE_TAIL: Final = 4096


@dataclasses.dataclass(slots=True)
class UpstreamRequest:
    """What replicas are asked. `body` makes the JSON for a replica, given the state of the stream
    that it is to go on with."""

    method: str
    target: str
    headers: Headers
    body: Callable[[Replica, dict[str, Any] | None], bytes]
    stream: bool
    journal: Journal | None
    """For streams whose replicas can go on with one another's."""


class Lost(Exception):
    """A replica did not bring an answer to its end. `kind` says whose fault it may be: `death`
    perhaps the request's, `refusal` the replica's load, `leave` nobody's. `outcome` is for the
    record, and never quotes what a replica said."""

    def __init__(
        self, kind: Literal["death", "refusal", "leave"], error: ApiError, outcome: str
    ) -> None:
        super().__init__(outcome)
        self.kind = kind
        self.error = error
        self.outcome = outcome


class _Try:
    """One attempt, from when the request goes to a replica until that has done with it."""

    def __init__(
        self, replica: Replica, ticket: Ticket, attempt: Attempt, record: RequestRecord
    ) -> None:
        self.replica = replica
        self.ticket = ticket
        self._attempt = attempt
        self._record = record
        self._began = replica.time.begin(time.monotonic(), record.answers)

    def end(self, outcome: str, *, ok: bool = False, cached_tokens: int | None = None) -> None:
        """Call it once."""
        now, record = time.monotonic(), self._record
        self._attempt.outcome = self._attempt.outcome or outcome
        self.ticket.on_end(now, ok=ok, actual_hit_tokens=cached_tokens)
        record.replica_seconds += self.replica.time.end(now, record.answers, self._began)


@dataclasses.dataclass(slots=True)
class _Opened:
    """An answer that has begun, on one replica."""

    tried: _Try
    response: Response

    @property
    def replica(self) -> Replica:
        return self.tried.replica

    def end(self, outcome: str, *, ok: bool, cached_tokens: int | None = None) -> None:
        self.response.close()
        self.tried.end(outcome, ok=ok, cached_tokens=cached_tokens)


class Forwarding:
    """One request, through all its attempts."""

    def __init__(
        self,
        pool: ReplicaPool,
        budget: RetryBudget,
        exchange: Exchange,
        record: RequestRecord,
        request: UpstreamRequest,
        route: RouteRequest,
    ) -> None:
        self.counts = TokenCounts()
        """Of the answer, as far as it said."""
        self._pool = pool
        self._options = pool.options
        self._budget = budget
        self._exchange = exchange
        self._record = record
        self._request = request
        self._route = route
        self._journal = request.journal
        self._excluded: set[str] = set()
        self._deaths = 0
        self._mid_event = False
        self._deadline = time.monotonic() + pool.options.queue_timeout

    async def run(self) -> None:
        """Answers the client. Raises `ApiError` if nobody could, or could to the end."""
        while True:
            opened = await self._open()
            outcome, ok = "broken off", False
            try:
                await self._pass_on(opened)
                outcome, ok = "completed", True
                return
            except (UpstreamError, StreamFailed) as error:
                if self._journal is not None and self._journal.lacks_only_its_end:
                    await self._exchange.end(END)
                    outcome, ok = "completed", True
                    return
                self._exchange.failure = error.event if isinstance(error, StreamFailed) else None
                if self._mid_event:
                    await self._exchange.write(b"\n\n")
                lost = self._lost_in(opened.replica, error)
                outcome = lost.outcome
                self._go_on_elsewhere(opened.replica, lost)
            finally:
                self._count()
                # What a stream that goes on finds in a cache is not what was predicted for its
                # prompt.
                cached = None if self._record.resumes else self.counts.cached_tokens
                opened.end(outcome, ok=ok, cached_tokens=cached)

    def _count(self) -> None:
        """A journal knows what no usage has told, as of a stream whose client went away."""
        counts, journal = self.counts, self._journal
        if journal is None or not journal.begun:
            return
        if counts.completion_tokens is None:
            counts.completion_tokens = journal.num_tokens
        if counts.cached_tokens is None:
            counts.cached_tokens = journal.cached_tokens

    # Before the first byte.

    async def _open(self) -> _Opened:
        """An answer's beginning, from whichever replica gives one."""
        lost: Lost | None = None
        while True:
            decision = self._pool.choose(self._route, self._excluded)
            if decision is None:
                await self._wait(lost)
                continue
            replica = self._pool.replicas[decision.replica_id]
            attempt = self._record.decided(decision)
            ticket = self._pool.fleet.dispatch(self._route, decision, time.monotonic())
            tried = _Try(replica, ticket, attempt, self._record)
            try:
                response = await self._send(replica)
            except Lost as error:
                lost = error
                tried.end(lost.outcome)
                self._excluded.add(replica.id)
                self._may_retry(lost)
            except BaseException:
                tried.end("cancelled")
                raise
            else:
                ticket.on_first_byte(time.monotonic())
                self._pool.on_success(replica)
                return _Opened(tried, response)

    async def _wait(self, lost: Lost | None) -> None:
        """Until there may be a replica to ask. Raises `ApiError` when the time is up."""
        if lost is not None and lost.error.status == 429 and not self._exchange.status:
            raise lost.error  # all are full
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise lost.error if lost else _no_replica()
        if self._excluded:
            await self._pool.wait_for_change(min(left, _RETRY_PAUSE))
            self._excluded.clear()
        else:
            await self._pool.wait_for_change(left)

    def _may_retry(self, lost: Lost) -> None:
        """Raises the error that is to be the client's if there is to be no other attempt."""
        if lost.kind == "death":
            self._deaths += 1
            if self._deaths >= MOST_DEATHS:
                raise lost.error
        elif lost.kind == "refusal" and not (
            self._exchange.status or self._budget.take(time.monotonic())
        ):
            raise lost.error
        if self._exchange.status:
            self._record.resumes += 1
            self._record.note("resume", lost.kind)
        else:
            self._record.retries += 1
            self._record.note("retry", lost.kind)

    async def _send(self, replica: Replica) -> Response:
        """Raises `Lost` for whatever another replica may do better."""
        request = self._request
        resume = None
        if self._journal is not None and self._journal.begun:
            resume = self._journal.resume()
        seconds = self._options.first_byte_timeout if request.stream else _WHOLE_ANSWER_SECONDS
        try:
            response = await replica.upstream.send(
                request.method,
                request.target,
                request.headers,
                request.body(replica, resume),
                seconds=seconds,
            )
        except UpstreamError as error:
            self._pool.on_failure(replica, error)
            raise _lost(error) from error
        if 300 <= response.status < 400:
            response.close()
            elsewhere = UpstreamError(f"its server sends us elsewhere, with HTTP {response.status}")
            self._pool.on_failure(replica, elsewhere)
            raise _lost(elsewhere)
        if response.status < 500 and response.status != 429:
            return response
        try:
            body = await response.read_all(self._options.idle_timeout)
        except UpstreamError as error:
            self._pool.on_failure(replica, error)
            raise _lost(error) from error
        finally:
            response.close()
        raise self._refused(replica, response, body)

    def _refused(self, replica: Replica, response: Response, body: bytes) -> Lost:
        """What an answer of 429 or of 500 and above means."""
        error = _error_of(response, body)
        outcome = f"HTTP {response.status} {error.detail.code or ''}".rstrip()
        if error.detail.code == _ENGINE_ABSENT:
            self._pool.on_refusal(replica, _ABSENT_SECONDS)
            return Lost("leave", error, outcome)
        if response.status in _REFUSALS and error.detail.code != _ENGINE_DEAD:
            self._pool.on_refusal(replica, _seconds(response.header(b"retry-after")))
            return Lost("refusal", error, outcome)
        self._pool.on_failure(replica)
        return Lost("death", error, outcome)

    # From the first byte on.

    async def _pass_on(self, opened: _Opened) -> None:
        response = opened.response
        content_type = (response.header(b"content-type") or b"").lower()
        if self._exchange.status and response.status != 200:
            body = await response.read_all(self._options.idle_timeout)
            raise _error_of(response, body)  # the stream cannot go on
        if response.status == 200 and content_type.startswith(b"text/event-stream"):
            await self._pass_on_events(opened)
            return
        body = await response.read_all(self._options.idle_timeout)
        self.counts = read_usage(body)
        self._note_first_byte()
        await self._exchange.answer(response.status, body, self._headers(opened))

    async def _pass_on_events(self, opened: _Opened) -> None:
        exchange, journal, ticket = self._exchange, self._journal, opened.tried.ticket
        idle_timeout = self._options.idle_timeout
        if journal is not None and opened.replica.is_pagelet:
            events = journaled_events(opened.response, journal, idle_timeout)
        else:
            events = plain_events(opened.response, idle_timeout)
        tokens = 0 if journal is None else journal.num_tokens
        tail = b""
        async for data in events:
            if not exchange.status:
                self._note_first_byte()
                await exchange.begin(200, self._headers(opened))
                opened.response.can_move = journal is not None and journal.begun
            if journal is not None and journal.num_tokens != tokens:
                ticket.on_tokens(journal.num_tokens - tokens, time.monotonic())
                tokens = journal.num_tokens
            tail = (tail + data)[-_USAGE_TAIL:]
            if opened.response.at_end and (journal is None or journal.may_end):
                self.counts = read_usage(tail)
                await exchange.end(data)
                return
            await exchange.write(data)
            self._mid_event = not data.endswith((b"\n\n", b"\r\n\r\n"))
        if not exchange.status:
            raise ConnectionLost("the stream ended before its first event", begun=True)
        self.counts = read_usage(tail)
        await exchange.end()

    def _headers(self, opened: _Opened) -> Headers:
        replica_id = opened.replica.id.encode("latin-1", "replace")
        return [*from_replica(opened.response.headers), (b"x-pagelet-replica", replica_id)]

    def _note_first_byte(self) -> None:
        self._record.ttft_seconds = self._record.elapsed()
        self._record.note("first_byte")

    def _lost_in(self, replica: Replica, error: UpstreamError | StreamFailed) -> Lost:
        """What it means that an answer broke off. Raises `ApiError` if any replica would say it."""
        if isinstance(error, StreamFailed):
            failure = _stream_error(error.error)
            if failure.detail.type != "server_error":
                raise failure
            lost = Lost("death", failure, f"error event {failure.detail.code or ''}".rstrip())
            self._pool.on_failure(replica)
        else:
            lost = _lost(error)
            self._pool.on_failure(replica, error)
        if replica.health in ("draining", "gone"):
            lost.kind = "leave"
        return lost

    def _go_on_elsewhere(self, replica: Replica, lost: Lost) -> None:
        """Prepares the next attempt. Raises `ApiError` if there can be none."""
        if self._exchange.status and not (self._journal is not None and self._journal.begun):
            raise ApiError(
                502,
                "The server of this stream failed, and another one cannot go on with it: "
                f"{lost.outcome}",
                code="stream_broken",
                reason="upstream",
            )
        self._excluded = {replica.id}
        self._deadline = time.monotonic() + self._options.queue_timeout
        self._may_retry(lost)


def _lost(error: UpstreamError) -> Lost:
    match error:
        case ReplicaLeaves():
            return Lost("leave", _upstream_error(503, error), str(error))
        case ConnectFailed():
            return Lost("refusal", _upstream_error(503, error), str(error))
        case UpstreamTimeout():
            return Lost("death", _upstream_error(504, error), str(error))
        case _:
            return Lost("death", _upstream_error(502, error), str(error))


def _upstream_error(status: int, error: UpstreamError) -> ApiError:
    return ApiError(
        status,
        f"No replica could answer: {error}.",
        code="upstream_failed",
        headers={"Retry-After": retry_after(1.0)} if status == 503 else None,
        reason="upstream",
    )


def _no_replica() -> ApiError:
    return ApiError(
        503,
        "No replica of this model is ready; try again later.",
        code="no_replica",
        headers={"Retry-After": retry_after(5.0)},
        reason="no_replica",
    )


def _error_of(response: Response, body: bytes) -> ApiError:
    """A replica's own error, for the client."""
    error = _decode_error(response.status, body)
    if (after := response.header(b"retry-after")) is not None:
        error.headers = {"Retry-After": after.decode("latin-1")}
    return error


class _AnyDetail(msgspec.Struct):
    """Servers of other kinds have numbers as codes."""

    message: str
    type: str | None = None
    param: str | int | None = None
    code: str | int | None = None


class _AnyError(msgspec.Struct):
    error: _AnyDetail


def _decode_error(status: int, body: bytes) -> ApiError:
    try:
        found = msgspec.json.decode(body, type=_AnyError).error
    except msgspec.MsgspecError:
        text = body[:200].decode(errors="replace")
        return ApiError(status, f"A replica answered: {text}", reason="upstream")
    param, code = (None if each is None else str(each) for each in (found.param, found.code))
    error = ApiError(status, found.message, param=param, code=code, reason="upstream")
    error.detail.type = found.type or error_type(status)
    return error


def _stream_error(body: bytes) -> ApiError:
    """An error that a replica told in the midst of a stream."""
    error = _decode_error(503, body)
    if error.detail.code != _ENGINE_DEAD:
        error.status = 502 if error.detail.type == "server_error" else 400
    return error


def _seconds(retry_after: bytes | None) -> float:
    try:
        return min(_MOST_HOLD, max(0.0, float(retry_after or b"1")))
    except ValueError:
        return 1.0
