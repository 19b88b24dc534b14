"""The default policy: go where the prompt is cached, unless waiting there costs more than it saves.

A candidate's score is the time that the request would take until its first token, with its own
prefill counted more than once: work that a replica elsewhere would not have had to do also delays
those who come after, and evicts what others want to hit. So a request stays with the replica that
holds most of it while others are a little shorter of work, and a prefix that is hotter than its
holder can bear spreads, one replica at a time.

Where no candidate holds anything of a prompt, its head decides on a hash ring: routers that know
nothing of each other, or a router that just started, agree on a replica. The ring's
choice is bounded by the requests that a replica has and by how much longer this one would wait;
the more seldom heads come again, the less the ring counts.
"""

import math
from collections import OrderedDict

from pagelet.router.routing.ring import HashRing
from pagelet.router.routing.types import Candidate, RouteRequest

WORK_WEIGHT = 1.2
"""How often a request's own prefill time counts. Found with `pagelet bench routing`: with less,
conversations lose their caches to each other; with more, hot prefixes wait for their holders."""
BACKLOG_WEIGHT = 1.0
"""How much more often, for each such request that even the least busy replica has waiting: all of
those would be later too. Without this a fleet that once fell behind would spread its prefixes, hit
less, and stay behind."""
NEW_HEAD_SLACK = 0.1
"""How much longer than elsewhere a prompt may wait at the ring's choice, in units of its own
prefill time, if heads never come twice."""
KNOWN_HEAD_SLACK = 4.0
"""The same for a head that comes again, and yet no replica is known to hold it: the index is not
telling, and the ring is all that there is."""
_REMEMBERED_HEADS = 10_000
_HEADS_THAT_COUNT = 30
"""About so many of the newest heads make the share of those that come again."""


class Prefix:
    """Least expected time to first token, own work weighed."""

    def __init__(self, ring: HashRing, stay_seconds: float, bounded_load: float) -> None:
        self._ring = ring
        self._stay_seconds = stay_seconds
        self._bounded_load = bounded_load
        self._heads: OrderedDict[bytes, bool] = OrderedDict()
        """Whether each came again; used last is last."""
        # A router that just started assumes that heads come again: others may know them.
        self._num_heads = self._num_again = float(_HEADS_THAT_COUNT)

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """The best candidate of those that keep the bound of `stay_seconds`."""
        seen = self._see(request.head)
        least_ttft = least_wait = math.inf
        most, longest = 0, 0.0
        for c in candidates:
            wait, ttft, hit = c.wait_seconds, c.ttft_seconds, c.hit_tokens
            if ttft < least_ttft:
                least_ttft = ttft
            if wait < least_wait:
                least_wait = wait
            if ttft - wait > longest:
                longest = ttft - wait
            if hit > most:
                most = hit
        weight = WORK_WEIGHT + BACKLOG_WEIGHT * least_wait / longest
        for c in candidates:
            c.score = c.wait_seconds + weight * (c.ttft_seconds - c.wait_seconds)
        if not most:
            return self._by_ring(request, candidates, least_ttft, seen)
        chosen, bound = None, least_ttft + self._stay_seconds
        for c in candidates:
            if c.ttft_seconds > bound:
                c.note = f"{c.ttft_seconds - least_ttft:.1f} s later than the best"
            elif chosen is None or (c.score, c.load) < (chosen.score, chosen.load):
                chosen = c
        assert chosen is not None, "the best keeps the bound"
        if chosen.hit_tokens == most:
            return chosen, "longest cached prefix"
        return chosen, "the longest cached prefix would cost more time than it saves"

    def _by_ring(
        self, request: RouteRequest, candidates: list[Candidate], least_ttft: float, seen: bool
    ) -> tuple[Candidate, str]:
        """The first replica clockwise from the head that is not too busy, by the requests that it
        has and by the time that it would take."""
        recurrence = 1.0 if seen else min(1.0, self._num_again / self._num_heads)
        slack = NEW_HEAD_SLACK + (KNOWN_HEAD_SLACK - NEW_HEAD_SLACK) * recurrence
        by_id = {candidate.replica_id: candidate for candidate in candidates}
        total = sum(candidate.load for candidate in candidates) + 1
        most = math.ceil(self._bounded_load * total / len(candidates))
        for replica_id in self._ring.walk(request.head):
            candidate = by_id.get(replica_id)
            if candidate is None or candidate.load + 1 > most:
                continue
            work = candidate.ttft_seconds - candidate.wait_seconds
            if candidate.ttft_seconds <= least_ttft + slack * work:
                return candidate, "hash of the head, its prefix is nowhere"
        best = min(candidates, key=lambda candidate: candidate.ttft_seconds)
        return best, "least time to first token, its prefix is nowhere"

    def _see(self, head: bytes) -> bool:
        """Whether the head was seen before; remembers it."""
        came_again = self._heads.pop(head, None)
        self._heads[head] = came_again is not None
        if came_again is None:
            kept = 1 - 1 / _HEADS_THAT_COUNT
            self._num_heads = kept * self._num_heads + 1
            self._num_again *= kept
            if len(self._heads) > _REMEMBERED_HEADS:
                self._heads.popitem(last=False)
            return False
        self._num_again += not came_again
        return True
