"""Requests that wait for a replica: one waiting room a pool.

Capacity is answers in flight: as many as its replicas take together. A permit stands for a
request that a replica has or will get; while permits are out for the whole capacity, requests
wait, and each that ends wakes as many as its place holds, at no cost for the others. With no
replica there is no capacity, so requests are held until one comes or their time is up.
"""

import asyncio
import dataclasses
import time
from typing import Final

from pagelet.protocol.openai.errors import ApiError, retry_after
from pagelet.router.queue.fair_queue import Entry, FairQueue

_NEWEST: Final = 0.1
"""Weight of the newest gap between two ends in their mean."""
_MOST_RETRY_AFTER: Final = 60.0
_HELD_RETRY_AFTER: Final = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A request that wants a permit."""

    tenant: str
    cost: float
    """Tokens that it is thought to read and write."""
    weight: float = 1.0
    """Of its tenant."""
    priority: int = 0
    """Among its tenant's; as in vLLM, the lowest goes first."""
    answers: int = 1
    prompt_tokens: float = 0.0
    """What a replica will have to prefill, for the sake of scaling."""


class Permit:
    """Leave to send a request to some replica of the pool, through all its retries."""

    def __init__(self, room: "WaitingRoom", entry: "Entry[_Waiter]", waited_seconds: float) -> None:
        self._room = room
        self._entry = entry
        self._held = True
        self._settled = False
        self.waited_seconds = waited_seconds

    def settle(self, tokens: float) -> None:
        """What the request has really cost, for the fairness of those after it."""
        self._settled = True
        self._room._queue.correct(self._entry, tokens)

    def release(self) -> None:
        """The request is over; the next may go. Without `settle` it has cost nothing. Later calls
        do nothing."""
        if self._held:
            self._held = False
            if not self._settled:
                self.settle(0)
            self._room._release(self._entry.item.ask.answers)


@dataclasses.dataclass(slots=True, eq=False)
class _Waiter:
    ask: Ask
    since: float
    answer: "asyncio.Future[Permit] | None" = None
    """None for a request that need not wait."""


class WaitingRoom:
    """The queue of one pool. For one event loop."""

    def __init__(self, *, size: int, timeout: float) -> None:
        self._size = size
        self._timeout = timeout
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._capacity = 0
        self._in_flight = 0
        self._ended = time.monotonic()
        self._mean_gap = 0.0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a replica, or for room in one."""
        return len(self._queue)

    @property
    def num_held(self) -> int:
        """Those that wait while there is no replica at all."""
        return 0 if self._capacity else len(self._queue)

    @property
    def waiting_prompt_tokens(self) -> float:
        """Of all that wait."""
        return sum(waiter.ask.prompt_tokens for waiter in self._queue)

    @property
    def in_flight(self) -> int:
        """Answers for which permits are out."""
        return self._in_flight

    @property
    def capacity(self) -> int:
        """Most answers in flight."""
        return self._capacity

    def set_capacity(self, answers: int) -> None:
        """Most answers in flight from now on; 0 while there is no replica."""
        self._capacity = answers
        self._admit()

    async def enter(self, ask: Ask) -> Permit:
        """Waits for a permit. Raises `ApiError`: 429 if the room is full, 503 with Retry-After when
        the time is up. A cancelled request leaves at once.

        One permit may take more than the capacity, if its request has several answers: it is given
        as soon as one place is free, so that such a request is not passed by for ever.
        """
        waiter = _Waiter(ask, time.monotonic())
        if self._in_flight < self._capacity:
            assert not self._queue, "a request waits beside a free place"
            self._push(waiter)
            return self._pop()
        self._make_place(ask)
        waiter.answer = asyncio.get_running_loop().create_future()
        entry = self._push(waiter)
        timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, entry)
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            self._queue.remove(entry)
            answer = waiter.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().release()  # it came together with the cancellation
            raise
        finally:
            timer.cancel()

    def _make_place(self, ask: Ask) -> None:
        """Raises 429 if there is no place; else one is there, perhaps taken from a tenant that has
        more than its share, so that a flood of one tenant does not shut out the others."""
        if len(self._queue) < self._size:
            return
        if self._queue.is_over_share(ask.tenant, ask.weight, self._size):
            raise self._full()
        self._turn_away(self._queue.longest(), self._full())

    def _push(self, waiter: _Waiter) -> Entry[_Waiter]:
        ask = waiter.ask
        return self._queue.push(
            waiter, tenant=ask.tenant, weight=ask.weight, priority=ask.priority, cost=ask.cost
        )

    def _pop(self) -> Permit:
        entry = self._queue.pop()
        self._in_flight += entry.item.ask.answers
        return Permit(self, entry, time.monotonic() - entry.item.since)

    def _admit(self) -> None:
        while self._queue and self._in_flight < self._capacity:
            permit = self._pop()
            answer = permit._entry.item.answer
            assert answer is not None
            if answer.cancelled():  # and its task has not run since
                permit.settle(0)
                self._in_flight -= permit._entry.item.ask.answers
            else:
                answer.set_result(permit)

    def _release(self, answers: int) -> None:
        self._in_flight -= answers
        now = time.monotonic()
        if self._queue:
            self._mean_gap += _NEWEST * (now - self._ended - self._mean_gap)
        self._ended = now
        self._admit()

    def _expire(self, entry: Entry[_Waiter]) -> None:
        if entry.queued:
            self._turn_away(entry, self._late())

    def _turn_away(self, entry: Entry[_Waiter], error: ApiError) -> None:
        self._queue.remove(entry)
        answer = entry.item.answer
        assert answer is not None
        if not answer.cancelled():
            answer.set_exception(error)

    def _full(self) -> ApiError:
        seconds = min(_MOST_RETRY_AFTER, self._mean_gap * len(self._queue))
        return ApiError(
            429,
            f"The model is overloaded: {len(self._queue)} requests wait for it already. "
            f"Try again in {retry_after(seconds)} s.",
            code="queue_full",
            headers={"Retry-After": retry_after(seconds)},
            reason="queue_full",
        )

    def _late(self) -> ApiError:
        if self._capacity:
            why, code = "All replicas of the model were busy", "overloaded"
            seconds = min(_MOST_RETRY_AFTER, self._mean_gap * (len(self._queue) + 1))
        else:
            why, code = "No replica of the model was ready", "no_replica"
            seconds = _HELD_RETRY_AFTER
        return ApiError(
            503,
            f"{why} for {self._timeout:g} s. Try again in {retry_after(seconds)} s.",
            code=code,
            headers={"Retry-After": retry_after(seconds)},
            reason=code,
        )
