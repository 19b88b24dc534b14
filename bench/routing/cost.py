"""What a routing decision costs on this machine."""

import dataclasses
import random
import time

from pagelet.bench.routing.measure import percentile
from pagelet.bench.routing.replica import Hardware, SimulatedReplica
from pagelet.protocol.block_hash import hash_blocks
from pagelet.protocol.router import RoutingOptions
from pagelet.router.routing.fleet import Fleet
from pagelet.router.routing.ring import prompt_head
from pagelet.router.routing.types import RouteRequest

_PREFIXES = 200
_CHOICES = 3000
_IN_FLIGHT = 200


@dataclasses.dataclass(frozen=True)
class Cost:
    """CPU seconds of `Fleet.choose` and `Fleet.dispatch`."""

    replicas: int
    prompt_tokens: int
    choose_p50: float
    choose_p99: float
    dispatch_p50: float
    dispatch_p99: float


def measure_cost(replicas: int = 32, prompt_tokens: int = 10_000) -> Cost:
    """Times choices for prompts whose first half others have sent before, in a busy fleet."""
    rng = random.Random(0)
    hardware = Hardware()
    fleet = Fleet(RoutingOptions())
    names = {f"replica-{number}" for number in range(replicas)}
    for name in sorted(names):
        fleet.add(name, SimulatedReplica(name, hardware).describe())
    half = prompt_tokens // 2
    prefixes = [[rng.randrange(32_000)] * half for _ in range(_PREFIXES)]
    chooses, dispatches, tickets = [], [], []
    for number in range(_CHOICES):
        prompt = rng.choice(prefixes) + [number] * (prompt_tokens - half)
        hashes = hash_blocks(prompt, hardware.block_size)
        request = RouteRequest(str(number), hashes, len(prompt), 64, prompt_head(hashes, b""), None)
        now = number * 0.05
        began = time.thread_time()
        decision = fleet.choose(request, now, eligible=names)
        chosen = time.thread_time()
        assert decision is not None
        tickets.append(fleet.dispatch(request, decision, now))
        dispatches.append(time.thread_time() - chosen)
        chooses.append(chosen - began)
        tickets[-1].on_first_byte(now)
        if len(tickets) > _IN_FLIGHT:
            tickets.pop(0).on_end(now, ok=True, actual_hit_tokens=decision.predicted_hit_tokens)
    chooses.sort()
    dispatches.sort()
    return Cost(
        replicas,
        prompt_tokens,
        percentile(chooses, 0.5),
        percentile(chooses, 0.99),
        percentile(dispatches, 0.5),
        percentile(dispatches, 0.99),
    )
