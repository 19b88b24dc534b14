"""Policies that follow a hash ring and look at no cache."""

from pagelet.router.routing.policies.balance import LeastRequest
from pagelet.router.routing.ring import HashRing
from pagelet.router.routing.types import Candidate, RouteRequest


class BoundedHashing:
    """Consistent hashing with bounded loads on the prompt's head, as KubeAI routes."""

    def __init__(self, ring: HashRing, bounded_load: float) -> None:
        self._ring = ring
        self._factor = bounded_load

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """The first candidate clockwise from the head whose load is within bounds."""
        loads = {candidate.replica_id: candidate.load for candidate in candidates}
        replica_id = self._ring.bounded(request.head, loads, self._factor)
        for candidate in candidates:
            candidate.score = candidate.load
        return next(c for c in candidates if c.replica_id == replica_id), "hash of the head"


class Session:
    """Requests of one session go to one replica, whatever its load; others to the least loaded."""

    def __init__(self, ring: HashRing, otherwise: LeastRequest) -> None:
        self._ring = ring
        self._otherwise = otherwise

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """The first candidate clockwise from the session."""
        if request.session is None:
            return self._otherwise.choose(request, candidates)
        by_id = {candidate.replica_id: candidate for candidate in candidates}
        replica_id = self._ring.first(request.session.encode(), by_id.__contains__)
        assert replica_id is not None, "a candidate is not on the ring"
        return by_id[replica_id], "hash of the session"
