"""The default policy: go where the prompt is cached, unless waiting there costs more than it saves.

A candidate's score is the time that the request would take until its first token. Copying a prefix
delays those who come after and evicts what others want to hit, but the copy also serves those who
come after: about as much of one as of the other, while there is work to spare. Where even the least
busy replica has a queue, work that need not be done makes all of it later, and so it counts more
than once. A prefix that is hotter than its holders can bear spreads, one replica at a time: sooner
while fewer replicas hold it than its share of the requests would keep busy, since a copy then saves
work of others.

Where no candidate holds anything of a prompt, its head decides on a hash ring: routers that know
nothing of each other, or a router that just started, agree on a replica. The ring's
choice is bounded by the requests that a replica has, and by the time that it may save: the
request's own prefill, times the chance that its head was there before. Where replicas turn out to
hold prompts that were not known to be there, as behind a router that just started and hears no
events, what is in flight takes less time than is thought, and the bound in time is wider.
"""

import math

from pagelet.router.routing.policies.heads import Heads
from pagelet.router.routing.ring import HashRing
from pagelet.router.routing.types import Candidate, RouteRequest

WORK_WEIGHT = 1.01
"""How often a request's own prefill time counts: just enough that equal times go to less work. With
1.05 and more a hot prefix waits for its holders, and conversations gain nothing."""
LEAST_SLACK = 0.02
"""Share of a prompt's own prefill that estimates may be apart and still count as equal, or all new
prompts would go to the one replica that looks fastest by chance. A tenth makes long ones late."""
_OTHERS_FILLED = 0.25
"""Share of unknown prompts that a replica turned out to hold, above which its wait counts for less:
what is in flight there has less to be computed than is thought."""
_MORE_SLACK = 4.0
"""Times a prompt's own prefill that such a replica may be later than the best. With 2 the gain for
shared prefixes is gone, with more conversations are later."""
_COPIES_SAVE = 0.3
"""Share of a prompt's own prefill that a copy of its prefix saves others, while fewer replicas hold
its head than its share of the requests would keep busy. Bursts are best at 0.3, shared prefixes at
0.6."""


class Prefix:
    """Least expected time to first token, own work weighed where all are behind."""

    def __init__(self, ring: HashRing, stay_seconds: float, bounded_load: float) -> None:
        self._ring = ring
        self._stay_seconds = stay_seconds
        self._bounded_load = bounded_load
        self._heads = Heads()

    def choose(self, request: RouteRequest, candidates: list[Candidate]) -> tuple[Candidate, str]:
        """The best candidate of those that keep the bound of `stay_seconds`."""
        seen, share = self._heads.see(request.head)
        least_ttft = least_wait = math.inf
        most, longest = 0, 0.0
        for c in candidates:
            wait, prefill, ttft = c.wait_seconds, c.prefill_seconds, c.ttft_seconds
            if ttft < least_ttft:
                least_ttft = ttft
            if wait < least_wait:
                least_wait = wait
            if prefill > longest:
                longest = prefill
            if c.hit_tokens > most:
                most = c.hit_tokens
        # Once more for each such request that even the least busy replica has waiting: else a fleet
        # that once fell behind would spread its prefixes, hit less, and stay behind.
        more = WORK_WEIGHT - 1.0 + least_wait / longest
        if most and share * len(candidates) > sum(c.holds_head for c in candidates):
            more -= _COPIES_SAVE
        for c in candidates:
            c.score = c.ttft_seconds + more * c.prefill_seconds
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
        # What is saved there on average, if the ring knows where heads were that came again.
        slack = 1.0 if seen else min(1.0, max(LEAST_SLACK, self._heads.again))
        by_id = {candidate.replica_id: candidate for candidate in candidates}
        total = sum(candidate.load for candidate in candidates) + 1
        most = math.ceil(self._bounded_load * total / len(candidates))
        for replica_id in self._ring.walk(request.head):
            candidate = by_id.get(replica_id)
            if candidate is None or candidate.load + 1 > most:
                continue
            later = slack * candidate.prefill_seconds
            if candidate.holds_unknown > _OTHERS_FILLED:
                later = min(_MORE_SLACK * candidate.prefill_seconds, self._stay_seconds)
            if candidate.ttft_seconds <= least_ttft + later:
                return candidate, "hash of the head, its prefix is nowhere"
        best = min(candidates, key=lambda candidate: candidate.ttft_seconds)
        return best, "least time to first token, its prefix is nowhere"
