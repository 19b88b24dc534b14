"""What every policy is: a choice among candidates."""

import random
from collections.abc import Callable
from typing import Protocol

from pagelet.protocol.router import PolicyName, RoutingOptions
from pagelet.router.routing.policies.balance import (
    LeastRequest,
    PowerOfTwo,
    Random,
    RoundRobin,
)
from pagelet.router.routing.policies.hashing import BoundedHashing, Session
from pagelet.router.routing.policies.prefix import Prefix
from pagelet.router.routing.ring import HashRing
from pagelet.router.routing.types import Candidate, RouteRequest


class Policy(Protocol):
    """Chooses a replica. Pure but for what it remembers of its own choices."""

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """One of the candidates (at least one) and the reason in a few words. Sets the score of
        each candidate, and a note where there is something to say."""
        ...


Factory = Callable[[RoutingOptions, HashRing, random.Random], Policy]

_FACTORIES: dict[PolicyName, Factory] = {
    "prefix": lambda options, ring, _: Prefix(ring, options.stay_seconds, options.bounded_load),
    "round_robin": lambda _options, _ring, _rng: RoundRobin(),
    "least_request": lambda _options, _ring, rng: LeastRequest(rng),
    "power_of_two": lambda _options, _ring, rng: PowerOfTwo(rng),
    "chwbl": lambda options, ring, _: BoundedHashing(ring, options.bounded_load),
    "session": lambda _options, ring, rng: Session(ring, LeastRequest(rng)),
    "random": lambda _options, _ring, rng: Random(rng),
}


def make_policy(options: RoutingOptions, ring: HashRing, rng: random.Random) -> Policy:
    """The policy that the options name, over a ring that the caller keeps up to date."""
    return _FACTORIES[options.policy](options, ring, rng)
