"""Routers in front of replicas, on a virtual clock.

The routers run the code of the real one (`router.routing.Fleet`); only time, network and replicas
are simulated. So a run is exact and the same every time, and an hour of traffic takes minutes.
"""

import dataclasses
import functools
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pagelet.bench.routing.replica import Hardware, Progress, SimulatedReplica
from pagelet.bench.routing.traces import Item
from pagelet.engine.core.kv_publisher import REPLAY_BATCHES
from pagelet.protocol.block_hash import hash_block, hash_blocks
from pagelet.protocol.kv_events import BlockStored, KVEvent, KVEventBatch
from pagelet.router.routing.fleet import Fleet, Ticket
from pagelet.router.routing.ring import prompt_head
from pagelet.router.routing.types import RouteRequest


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What is not as it should be."""

    num_routers: int = 1
    """Each request comes to any one of them."""
    events_delay: float = 0.005
    """Seconds from the end of a step until routers hear what it cached."""
    events_lost: float = 0.0
    """Share of event batches that never arrive, and that nobody notices."""
    events: bool = True
    """False: replicas send none."""
    described: bool = True
    """False: replicas say nothing of their speed and size."""
    slow_replicas: int = 0
    """So many replicas take three times as long for every step."""
    restarts: int = 0
    """So often the routers are replaced by new ones that know nothing; if replicas send events,
    they get the last ones again, as by replay."""
    forged_claims: int = 0
    """So many replicas are said by forged events to hold every prompt, before it comes."""


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of one request."""

    item: Item
    arrived: float
    replica: int
    refused: bool = False
    ttft: float | None = None
    finished: float | None = None
    hit_tokens: int = 0
    predicted_hit_tokens: int = 0
    predicted_ttft: float = 0.0


class Sent(Protocol):
    """What a router wants to hear of a request that it sent; see `Ticket`."""

    def on_first_byte(self, now: float) -> None: ...

    def on_tokens(self, count: int, now: float) -> None: ...

    def on_end(self, now: float, *, ok: bool, actual_hit_tokens: int | None = None) -> None: ...


class Router(Protocol):
    """Chooses replicas, and hears what comes of it."""

    def choose(self, request: RouteRequest, now: float) -> tuple[int, int, float, Sent | None]:
        """The replica's number, the predicted hit and TTFT, and a ticket to tell the rest to."""
        ...

    def on_events(self, replica: int, events: list[KVEvent], now: float) -> None:
        """What a replica's cache gained and lost."""
        ...


class FleetRouter:
    """The real router's brain."""

    def __init__(self, fleet: Fleet, replicas: Sequence[SimulatedReplica], described: bool) -> None:
        self._fleet = fleet
        self._numbers = {replica.name: number for number, replica in enumerate(replicas)}
        for replica in replicas:
            fleet.add(replica.name, replica.describe() if described else None)

    def choose(self, request: RouteRequest, now: float) -> tuple[int, int, float, Ticket]:
        """As the proxy does for every request."""
        decision = self._fleet.choose(request, now, eligible=self._numbers)
        assert decision is not None
        ticket = self._fleet.dispatch(request, decision, now)
        return (
            self._numbers[decision.replica_id],
            decision.predicted_hit_tokens,
            decision.predicted_ttft_seconds,
            ticket,
        )

    def on_events(self, replica: int, events: list[KVEvent], now: float) -> None:
        """As the subscriber does for every batch."""
        self._fleet.apply_events(f"replica-{replica}", KVEventBatch(now, events))


class OracleRouter:
    """Knows every replica's exact cache and queue, and takes the least time to first token."""

    def __init__(self, replicas: Sequence[SimulatedReplica]) -> None:
        self._replicas = replicas

    def choose(self, request: RouteRequest, now: float) -> tuple[int, int, float, None]:
        """The replica that would answer first."""
        prompt, hashes = request.num_prompt_tokens, request.block_hashes
        times = [replica.exact_ttft(now, prompt, hashes) for replica in self._replicas]
        best = min(range(len(times)), key=times.__getitem__)
        return best, self._replicas[best].exact_hit_tokens(hashes), times[best], None

    def on_events(self, replica: int, events: list[KVEvent], now: float) -> None:
        """It knows already."""


@dataclasses.dataclass
class Run:
    """All that happened."""

    outcomes: list[Outcome]
    busy_seconds: list[float]
    duration: float


def simulate(
    items: Sequence[Item],
    make_router: Callable[[Sequence[SimulatedReplica], int], Router],
    num_replicas: int,
    hardware: Hardware,
    conditions: Conditions,
    seed: int,
) -> Run:
    """Runs a trace to its end. `make_router(replicas, number)` makes each router."""
    return _Simulation(items, make_router, num_replicas, hardware, conditions, seed).run()


class _Simulation:
    def __init__(
        self,
        items: Sequence[Item],
        make_router: Callable[[Sequence[SimulatedReplica], int], Router],
        num_replicas: int,
        hardware: Hardware,
        conditions: Conditions,
        seed: int,
    ) -> None:
        self._items = items
        self._conditions = conditions
        self._rng = random.Random(seed)
        self._replicas = [
            SimulatedReplica(
                f"replica-{number}", hardware, 3.0 if number < conditions.slow_replicas else 1.0
            )
            for number in range(num_replicas)
        ]
        self._kept_events: list[deque[list[KVEvent]]] = [
            deque(maxlen=REPLAY_BATCHES) for _ in range(num_replicas)
        ]
        self._make_router = make_router
        self._routers = self._new_routers()
        self._block_size = hardware.block_size
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._outcomes: dict[int, Outcome] = {}
        self._tickets: dict[int, Sent] = {}
        self._hashes: dict[int, list[bytes]] = {}
        """By the identity of a prompt's first part."""
        self._next_turns: dict[int, list[Item]] = {}

    def _new_routers(self) -> list[Router]:
        count = self._conditions.num_routers
        return [self._make_router(self._replicas, number) for number in range(count)]

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), what))

    def run(self) -> Run:
        for item in self._items:
            if item.after is None:
                self._at(item.arrival, functools.partial(self._arrive, item))
            else:
                self._next_turns.setdefault(id(item.after), []).append(item)
        last = max((item.arrival for item in self._items if item.after is None), default=0.0)
        for number in range(self._conditions.restarts):
            self._at(last * (number + 1) / (self._conditions.restarts + 1), self._restart_routers)
        while self._queue:
            self._now, _, what = heapq.heappop(self._queue)
            what()
        outcomes = [self._outcomes[key] for key in sorted(self._outcomes)]
        return Run(outcomes, [replica.busy_seconds for replica in self._replicas], self._now)

    def _restart_routers(self) -> None:
        self._routers = self._new_routers()
        self._tickets.clear()
        for number, kept in enumerate(self._kept_events):
            for events in kept:
                for router in self._routers:
                    router.on_events(number, events, self._now)

    def _arrive(self, item: Item) -> None:
        key = len(self._outcomes)
        prompt = item.prompt()
        hashes = self._hash(item, prompt)
        head = prompt_head(hashes, b"".join(token.to_bytes(4, "little") for token in prompt[:16]))
        request = RouteRequest(str(key), hashes, len(prompt), len(item.answer), head, item.session)
        router = self._rng.choice(self._routers)
        for number in range(self._conditions.forged_claims):
            router.on_events(number, _claim(hashes, prompt, self._block_size), self._now)
        number, hit, ttft, ticket = router.choose(request, self._now)
        outcome = Outcome(item, self._now, number, predicted_hit_tokens=hit, predicted_ttft=ttft)
        self._outcomes[key] = outcome
        if not self._replicas[number].submit(key, item, prompt, hashes):
            outcome.refused = True
            if ticket is not None:
                ticket.on_end(self._now, ok=False)
            return
        if ticket is not None:
            self._tickets[key] = ticket
        self._start(number)

    def _hash(self, item: Item, prompt: list[int]) -> list[bytes]:
        """`hash_blocks`, with what a first part of whole blocks gives kept for who shares it."""
        first, size = item.parts[0], self._block_size
        if len(item.parts) == 1 or len(first) % size:
            return hash_blocks(prompt, size)
        kept = self._hashes.get(id(first))
        if kept is None:
            kept = self._hashes[id(first)] = hash_blocks(first, size)
        hashes = kept.copy()
        for start in range(len(first), len(prompt) - size + 1, size):
            hashes.append(hash_block(hashes[-1], prompt[start : start + size]))
        return hashes

    def _start(self, number: int) -> None:
        replica = self._replicas[number]
        if not replica.running and replica.begin_step(self._now):
            self._at(replica.step_ends, lambda: self._end_step(number))

    def _end_step(self, number: int) -> None:
        progress, events = self._replicas[number].end_step()
        for entry in progress:
            self._advance(entry)
        if events and self._conditions.events:
            self._kept_events[number].append(events)
            for router in self._routers:
                if self._rng.random() >= self._conditions.events_lost:
                    self._at(
                        self._now + self._conditions.events_delay,
                        functools.partial(self._tell, router, number, events),
                    )
        self._start(number)

    def _tell(self, router: Router, number: int, events: list[KVEvent]) -> None:
        router.on_events(number, events, self._now)

    def _advance(self, entry: Progress) -> None:
        outcome, ticket = self._outcomes[entry.key], self._tickets.get(entry.key)
        if outcome.ttft is None:
            outcome.ttft = self._now - outcome.arrived
            outcome.hit_tokens = entry.num_cached_tokens
            if ticket is not None:
                ticket.on_first_byte(self._now)
        if ticket is not None:
            ticket.on_tokens(entry.num_tokens, self._now)
        if not entry.finished:
            return
        outcome.finished = self._now
        if ticket is not None:
            ticket.on_end(self._now, ok=True, actual_hit_tokens=entry.num_cached_tokens)
            del self._tickets[entry.key]
        for item in self._next_turns.pop(id(outcome.item), ()):
            self._at(self._now + item.arrival, functools.partial(self._arrive, item))


def _claim(hashes: list[bytes], prompt: list[int], block_size: int) -> list[KVEvent]:
    """An event that says that a whole prompt is cached."""
    return [
        BlockStored(
            block_hashes=hashes,
            parent_block_hash=None,
            token_ids=prompt[: len(hashes) * block_size],
            block_size=block_size,
        )
    ]
