"""Replicas that come and go on a virtual clock, by different measures of demand.

What decides how many there are is the code of the real thing (`protocol.autoscaling`), with the
real router's measure of load; replicas are simple: they prefill one prompt after the other at a
constant rate, and generate at a constant speed.
"""

import dataclasses
import functools
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from pagelet.bench.autoscaling.trace import Arrival
from pagelet.protocol.autoscaling.demand import ScalingTargets, Work, demand
from pagelet.protocol.autoscaling.scaler import Scaler, ScalingBounds
from pagelet.router.routing.arrivals import ArrivalSizes
from pagelet.router.routing.decode_speed import DecodeSpeed

_LOAD_SECONDS: Final = 60.0
"""As the router's."""
_LOOK_SECONDS: Final = 5.0


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What all replicas are, and how the router treats requests."""

    prefill_tokens_per_second: float = 500.0
    token_seconds: float = 0.04
    """For each token of an answer."""
    token_seconds_each: float = 0.0
    """Besides, for each answer in flight when it begins."""
    slots: int = 32
    """Answers in flight."""
    kv_tokens: int = 100_000
    startup_seconds: float = 60.0
    queue_size: int = 1024
    queue_seconds: float = 180.0


@dataclasses.dataclass(frozen=True)
class State:
    """What a measure of demand may look at."""

    work: Work
    in_queues: int
    """Requests without a first token: in the router and in replicas."""


Measure = Callable[[State], float]
"""The demand in replicas."""


def by_backlog(seconds: float, slots: int) -> Measure:
    """Pagelet's, with its own targets of concurrency and KV use."""
    targets = ScalingTargets(backlog_seconds=seconds, concurrency=slots)
    return lambda state: max(demand(state.work, targets).values())


def by_ttft(seconds: float, slots: int) -> Measure:
    """Pagelet's with a time to first token as the objective."""
    targets = ScalingTargets(ttft_seconds=seconds, concurrency=slots)
    return lambda state: max(demand(state.work, targets).values())


def by_tpot(seconds: float, slots: int) -> Measure:
    """Pagelet's with a time between tokens as the objective, too."""
    targets = ScalingTargets(tpot_seconds=seconds, concurrency=slots)
    return lambda state: max(demand(state.work, targets).values())


def by_queue(requests: float, slots: int) -> Measure:
    """Requests in the queues, each alike; others keep the last replica from going."""
    return lambda state: max(state.in_queues / requests, min(1.0, state.work.answers))


def by_kv(use: float, slots: int) -> Measure:
    """Caches alone; requests that wait wake the first replica."""
    return lambda state: max(state.work.kv_load / use, min(1.0, state.work.answers))


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to scale, with targets from frugal to generous."""

    name: str
    unit: str
    measure: Callable[[float, int], Measure]
    targets: Sequence[float]
    usual: float
    """Pagelet's default, a middling one, or what guides for vLLM's metric of that name say."""


METHODS: Final = (
    Method("backlog", "s", by_backlog, (10.0, 2.0, 0.5), 2.0),
    Method("TTFT objective", "s", by_ttft, (10.0, 5.0, 2.0), 5.0),
    Method("queue length", "requests", by_queue, (10.0, 5.0, 1.0), 5.0),
    Method("KV use", "", by_kv, (0.7, 0.3, 0.1), 0.7),
)


@dataclasses.dataclass
class Run:
    """All that happened."""

    ttfts: list[float]
    """Seconds, of requests that were answered."""
    waits: list[float]
    """The same without what their own prompts took."""
    tpots: list[float]
    """Seconds between two tokens, of the same requests."""
    held: int
    """Requests that came while there was no replica."""
    shed: int
    """That got 429 or 503."""
    replica_seconds: float
    """Until the last stream of each replica."""
    counts: list[tuple[float, int]]
    """When the number of replicas changed, and to what."""


def simulate(
    arrivals: Sequence[Arrival],
    measure: Measure,
    bounds: ScalingBounds,
    hardware: Hardware,
) -> Run:
    """Runs a trace to its end."""
    return _Simulation(arrivals, measure, bounds, hardware).run()


@dataclasses.dataclass(eq=False, slots=True)
class _Replica:
    born: float
    prefilled_at: float
    """When its last prompt is done; a new one begins then."""
    queue: deque[tuple[float, float]] = dataclasses.field(default_factory=deque)
    """When each prompt begins, and how long it takes; those that have begun go when looked at."""
    in_flight: int = 0
    kv: int = 0
    leaving: bool = False


class _Simulation:
    def __init__(
        self,
        arrivals: Sequence[Arrival],
        measure: Measure,
        bounds: ScalingBounds,
        hardware: Hardware,
    ) -> None:
        self._arrivals = arrivals
        self._measure = measure
        self._bounds = bounds
        self._hardware = hardware
        self._scaler = Scaler()
        self._load = ArrivalSizes(_LOAD_SECONDS)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._replicas: list[_Replica] = []
        self._starting: list[_Replica] = []
        self._waiting: deque[Arrival] = deque()
        self._waiting_tokens = 0
        self._prefilling = 0
        self._decode = DecodeSpeed()
        self._run = Run([], [], [], 0, 0, 0.0, [])

    def run(self) -> Run:
        self._scale_to(max(1, self._bounds.min_replicas))
        for replica in list(self._starting):  # the day begins with them
            self._ready(replica)
        self._look()
        for arrival in self._arrivals:
            self._advance(arrival.when)
            self._now = arrival.when
            self._arrive(arrival)
        while self._waiting or any(r.in_flight for r in self._replicas):
            when, _, what = heapq.heappop(self._events)
            self._now = when
            what()
        for replica in [*self._replicas, *self._starting]:
            self._run.replica_seconds += self._now - replica.born
        return self._run

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def _advance(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self._now, _, what = heapq.heappop(self._events)
            what()

    # Requests

    def _arrive(self, arrival: Arrival) -> None:
        if not any(not replica.leaving for replica in self._replicas):
            self._run.held += 1
        if len(self._waiting) >= self._hardware.queue_size:
            self._run.shed += 1
            return
        self._waiting.append(arrival)
        self._waiting_tokens += arrival.uncached_tokens
        self._dispatch()

    def _dispatch(self) -> None:
        """Sends what waits to the replica that would answer first, while one has room."""
        hardware = self._hardware
        while self._waiting:
            arrival = self._waiting[0]
            late = self._now - arrival.when > hardware.queue_seconds
            best = None
            if not late:
                for replica in self._replicas:
                    if (
                        not replica.leaving
                        and replica.in_flight < hardware.slots
                        and replica.kv + arrival.kv_tokens <= hardware.kv_tokens
                        and (best is None or replica.prefilled_at < best.prefilled_at)
                    ):
                        best = replica
                if best is None:
                    return
            self._waiting.popleft()
            self._waiting_tokens -= arrival.uncached_tokens
            if best is None:
                self._run.shed += 1
            else:
                self._send(arrival, best)

    def _send(self, arrival: Arrival, replica: _Replica) -> None:
        seconds = arrival.uncached_tokens / self._hardware.prefill_tokens_per_second
        self._load.add(seconds, self._now)
        begin = max(self._now, replica.prefilled_at)
        replica.queue.append((begin, seconds))
        first = begin + seconds
        replica.prefilled_at = first
        replica.in_flight += 1
        replica.kv += arrival.kv_tokens
        self._prefilling += 1
        self._run.ttfts.append(first - arrival.when)
        self._run.waits.append(first - arrival.when - seconds)
        self._at(first, self._first_token)
        hardware, answers = self._hardware, replica.in_flight
        pace = hardware.token_seconds + hardware.token_seconds_each * answers
        self._run.tpots.append(pace)
        end = first + arrival.answer_tokens * pace
        self._at(end, lambda: self._end(arrival, replica, answers, pace))

    def _first_token(self) -> None:
        self._prefilling -= 1

    def _end(self, arrival: Arrival, replica: _Replica, answers: int, pace: float) -> None:
        tokens = arrival.answer_tokens
        self._decode.observe((answers + replica.in_flight) / 2, tokens, tokens * pace)
        replica.in_flight -= 1
        replica.kv -= arrival.kv_tokens
        if replica.leaving and not replica.in_flight:
            self._remove(replica)
        self._dispatch()

    # Replicas

    def _look(self) -> None:
        self._dispatch()  # also to give up what waited too long
        staying = [replica for replica in self._replicas if not replica.leaving]
        current = len(staying) + len(self._starting)
        wanted = self._scaler.decide(self._bounds, current, self._measure(self._state()), self._now)
        if wanted != current:
            self._scale_to(wanted)
        self._at(self._now + _LOOK_SECONDS, self._look)

    def _state(self) -> State:
        hardware, now = self._hardware, self._now
        queued_seconds, queued = 0.0, len(self._waiting)
        for replica in self._replicas:
            while replica.queue and replica.queue[0][0] <= now:
                replica.queue.popleft()
            queued += len(replica.queue)
            queued_seconds += sum(seconds for _, seconds in replica.queue)
        waiting = self._waiting_tokens / hardware.prefill_tokens_per_second
        in_flight = sum(replica.in_flight for replica in self._replicas)
        work = Work(
            queued_seconds=queued_seconds + waiting,
            queued=queued,
            prompts=self._load.prompts(0.0, now),
            answers=in_flight + len(self._waiting),
            decode=self._decode.line,
            kv_load=sum(replica.kv for replica in self._replicas) / hardware.kv_tokens,
        )
        return State(work, len(self._waiting) + self._prefilling)

    def _scale_to(self, wanted: int) -> None:
        staying = [replica for replica in self._replicas if not replica.leaving]
        self._run.counts.append((self._now, wanted))
        for _ in range(wanted - len(staying) - len(self._starting)):
            replica = _Replica(self._now, self._now)
            self._starting.append(replica)
            self._at(
                self._now + self._hardware.startup_seconds, functools.partial(self._ready, replica)
            )
        while len(staying) + len(self._starting) > wanted:
            if self._starting:
                gone = self._starting.pop()
                self._run.replica_seconds += self._now - gone.born
                continue
            leaving = min(staying, key=lambda replica: replica.in_flight)
            staying.remove(leaving)
            leaving.leaving = True
            if not leaving.in_flight:
                self._remove(leaving)

    def _ready(self, replica: _Replica) -> None:
        if replica in self._starting:
            self._starting.remove(replica)
            self._replicas.append(replica)
            self._dispatch()

    def _remove(self, replica: _Replica) -> None:
        self._replicas.remove(replica)
        self._run.replica_seconds += self._now - replica.born
