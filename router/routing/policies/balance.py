"""Policies that look at load alone."""

import random

from pagelet.router.routing.types import Candidate, RouteRequest


class RoundRobin:
    """Each replica in turn."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """The next replica after the last one, by id, so that a replica that comes or goes moves
        nobody else's turn."""
        in_turn = sorted(candidates, key=lambda candidate: candidate.replica_id)
        chosen = next((c for c in in_turn if c.replica_id > self._last), in_turn[0])
        self._last = chosen.replica_id
        return chosen, "its turn"


class LeastRequest:
    """The replica with the fewest requests in flight; any one of several."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """The least loaded candidate."""
        for candidate in candidates:
            candidate.score = candidate.load
        least = min(candidate.load for candidate in candidates)
        return self._rng.choice([c for c in candidates if c.load == least]), "least requests"


class PowerOfTwo:
    """The less loaded of two replicas drawn at random (Mitzenmacher, 1996)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """The less loaded of two."""
        for candidate in candidates:
            candidate.score = candidate.load
        drawn = self._rng.sample(candidates, min(2, len(candidates)))
        for candidate in drawn:
            candidate.note = "drawn"
        return min(drawn, key=lambda candidate: candidate.load), "less loaded of two"


class Random:
    """Any replica."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """Any candidate."""
        return self._rng.choice(candidates), "random"
