"""The replicas of one pool as a router knows them, and the choice among them."""

import math
import random
import statistics
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pagelet.protocol.autoscaling.demand import DecodeLine
from pagelet.protocol.autoscaling.objective import Prompts
from pagelet.protocol.kv_events import AllBlocksCleared, BlockStored, KVEventBatch
from pagelet.protocol.replica import ReplicaDescription
from pagelet.protocol.router import RoutingOptions
from pagelet.router.routing.arrivals import ArrivalSizes
from pagelet.router.routing.estimator import DEFAULT_PREFILL_RATE, InFlight, ReplicaEstimator
from pagelet.router.routing.own_decisions import CONFIRM_SECONDS, KEEP_SECONDS, OwnDecisions
from pagelet.router.routing.policies.registry import make_policy
from pagelet.router.routing.prefix_index import PrefixIndex
from pagelet.router.routing.ring import HEAD_BLOCKS, HashRing
from pagelet.router.routing.text_hash import TOKENS_PER_CHUNK
from pagelet.router.routing.types import Candidate, Decision, RouteRequest

_UNKNOWN_WEIGHT = 0.2
"""Of the newest answer in the share of unknown prompts that a replica held: after six that it did
not hold, a new router takes it for empty."""
_TRUST_WEIGHT = 0.05
"""Of the newest answer in a replica's trust."""
_DISTRUST = 4.0
"""How fast credit falls with trust: below three quarters nothing is left."""
_LEAST_TRUST = 0.8
"""Below that a replica's events are ignored for `_IGNORED_SECONDS`."""
_IGNORED_SECONDS = 600.0
_SHORTFALLS = 3
"""So often in a row a replica may hit less of a prefix than the index says before the index is
taken to be wrong."""
_WATCHED_PREFIXES = 1024
_LONGEST_HASH = 32
"""Bytes; the index bounds how many hashes it remembers."""
_LOAD_SECONDS = 60.0
"""Over which the load of prompts is a mean: longer than between two of them, and no longer than a
service may take to grow."""
_MEDIUM = (None, "GPU")
"""Where a block must be to be hit at once; other media are slower tiers."""


@dataclass(slots=True)
class ReplicaState:
    """What the router knows of a replica, for metrics and `explain`."""

    replica_id: str
    in_flight: int
    pending_prefill_tokens: int
    prefill_tokens_per_second: float
    wait_seconds: float
    sends_events: bool
    trust: float
    """Mean share of the predicted hits that really were hits, 0 to 1."""
    queued_prompts: int
    """That wait for another one to be computed."""
    queued_tokens: int
    """Of them, without what is cached."""
    decoding: int
    """Answers that have begun."""
    decode_slots: int
    """Most answers that go on in one step."""
    kv_use: float
    """Share of the KV cache that answers in flight fill."""


class _Replica:
    """Everything about one replica. Its index members are its data-parallel ranks: the replica
    itself is rank 0."""

    def __init__(self, replica_id: str, index: PrefixIndex) -> None:
        self.replica_id = replica_id
        self.incarnation: str | None = None
        self.resets = 0
        """How often all that it holds was forgotten."""
        self.estimator = ReplicaEstimator()
        self.own = OwnDecisions(index, replica_id)
        self.members = [replica_id]
        self.sends_events = False
        self.ignore_events_until = -math.inf
        self.window_groups: set[int | None] = set()
        """KV groups of sliding-window layers: their blocks come and go by other rules, and the
        same hash stands for a block of full attention too."""
        self.trust = 1.0
        self.holds_unknown = 1.0
        """Share of the prompts not known to be there that it turned out to hold, lately: others
        put them there, as the router before this one. Until something is known it may hold all."""
        self.shortfalls: OrderedDict[bytes, int] = OrderedDict()

    @property
    def credit(self) -> float:
        """Share of its predicted hits that a choice counts on: less than the mean that came true,
        since a replica is chosen where it is thought to hold more than the others, and so most
        often where that is wrong."""
        return max(0.0, 1.0 - _DISTRUST * (1.0 - self.trust))


class Ticket:
    """One request in flight on one replica. Every ticket must end, once; later calls do nothing."""

    __slots__ = ("_ended", "_fleet", "_in_flight", "_known", "_replica", "_request", "_resets")

    def __init__(
        self,
        fleet: "Fleet",
        replica: _Replica,
        request: RouteRequest,
        known: int,
        in_flight: InFlight,
    ) -> None:
        self._fleet = fleet
        self._replica = replica
        self._request = request
        self._known = known
        self._in_flight = in_flight
        self._resets = replica.resets
        self._ended = False

    def on_first_byte(self, now: float) -> None:
        """The first token arrived: the prompt's prefill is done."""
        if not self._ended:
            self._replica.estimator.first_token(self._in_flight, now)

    def on_tokens(self, count: int, now: float) -> None:
        """`count` more tokens were generated."""
        if not self._ended:
            self._replica.estimator.generated(self._in_flight, count, now)

    def on_end(self, now: float, *, ok: bool, actual_hit_tokens: int | None = None) -> None:
        """The answer is complete, failed or was cancelled; `actual_hit_tokens` is what the replica
        says that its cache held (`usage.prompt_tokens_details.cached_tokens`)."""
        if self._ended:
            return
        self._ended = True
        prefilled = not self._in_flight.prefilling
        uncached = None
        if actual_hit_tokens is not None:
            uncached = self._request.num_prompt_tokens - actual_hit_tokens
        self._replica.estimator.end(self._in_flight, now, uncached)
        if self._resets == self._replica.resets:
            # What was predicted by what is forgotten says nothing of what is known now.
            self._fleet._learn(
                self._replica, self._request, self._known, now, ok or prefilled, actual_hit_tokens
            )


class Fleet:
    """All state of a pool's routing. Not thread-safe: one event loop owns it. `now` is any
    monotonic clock in seconds, always the same one."""

    def __init__(self, options: RoutingOptions, *, seed: int = 0) -> None:
        self.block_size = TOKENS_PER_CHUNK
        """Tokens that a block hash stands for: what the replicas say, if they do."""
        self._index = PrefixIndex(options.max_index_blocks)
        self._ring = HashRing()
        self._policy = make_policy(options, self._ring, random.Random(seed))
        self._replicas: dict[str, _Replica] = {}
        self._now = -math.inf
        """When a request was last routed."""
        self._arrivals = ArrivalSizes(_LOAD_SECONDS)
        self._last_rate: float | None = None
        """Of the replicas that there were, for the time when there is none."""
        self._last_line: DecodeLine | None = None

    @property
    def num_index_blocks(self) -> int:
        """Blocks that the prefix index remembers."""
        return len(self._index)

    def in_flight(self, replica_id: str) -> int:
        """Requests that were sent to a replica and have not ended; 0 for one that is not known."""
        replica = self._replicas.get(replica_id)
        return 0 if replica is None else replica.estimator.in_flight

    def add(self, replica_id: str, description: ReplicaDescription | None) -> None:
        """Adds a replica, or takes its new description in; a new incarnation starts empty."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            replica = self._replicas[replica_id] = _Replica(replica_id, self._index)
            self._index.add_replica(replica_id)
            self._ring.add(replica_id)
        if description is None:
            return
        if replica.incarnation not in (None, description.incarnation):
            self.reset(replica_id)
            replica.ignore_events_until = -math.inf  # it was the one before whose events lied
        replica.incarnation = description.incarnation
        replica.own.capacity = description.num_kv_blocks
        replica.estimator.describe(description)
        self.block_size = description.block_size

    def remove(self, replica_id: str) -> None:
        """Forgets a replica and all that it holds. Its tickets may still end."""
        if replica_id in self._replicas:
            self._last_rate, self._last_line = self.usual_rate, self.decode_line
        replica = self._replicas.pop(replica_id, None)
        if replica is not None:
            self._ring.remove(replica_id)
            for member in replica.members:
                self._index.remove_replica(member)

    def choose(
        self,
        request: RouteRequest,
        now: float,
        *,
        excluded: Collection[str] = (),
        eligible: Collection[str],
    ) -> Decision | None:
        """The replica for a request; None if no known one is eligible and not excluded."""
        self._now = now
        replicas = [
            replica
            for replica_id, replica in self._replicas.items()
            if replica_id in eligible and replica_id not in excluded
        ]
        if not replicas:
            return None
        candidates = self._candidates(request, replicas, now)
        chosen, reason = self._policy.choose(request, candidates)
        return Decision(
            chosen.replica_id, reason, chosen.hit_tokens, chosen.ttft_seconds, candidates
        )

    def _candidates(
        self, request: RouteRequest, replicas: Sequence[_Replica], now: float
    ) -> list[Candidate]:
        prefixes = self._index.longest_prefixes(request.block_hashes)
        prompt, block_size = request.num_prompt_tokens, self.block_size
        most = max(0, prompt - 1) // block_size  # the last token is always computed
        head = min(HEAD_BLOCKS, len(request.block_hashes))
        usual_rate = 0.0
        candidates = []
        for replica in replicas:
            hit = blocks = 0
            if prefixes:
                blocks = max(prefixes.get(member, 0) for member in replica.members)
                hit = min(blocks, most) * block_size
            estimator = replica.estimator
            rate = estimator.rate
            if rate is None:
                rate = usual_rate = usual_rate or self.usual_rate
            wait = estimator.wait_seconds(now, rate)
            prefill = max(1.0, prompt - hit * replica.credit) / rate
            candidates.append(
                Candidate(
                    replica.replica_id,
                    hit,
                    wait,
                    prefill,
                    wait + prefill + estimator.start_seconds,
                    float(estimator.in_flight),
                    0.0,
                    holds_head=blocks >= head > 0,
                    holds_unknown=replica.holds_unknown,
                )
            )
        return candidates

    @property
    def usual_rate(self) -> float:
        """The prefill rate to assume of a replica of which none is known, tokens a second."""
        rates = [r.estimator.rate for r in self._replicas.values() if r.estimator.rate is not None]
        return statistics.median_low(rates) if rates else self._last_rate or DEFAULT_PREFILL_RATE

    @property
    def decode_line(self) -> DecodeLine | None:
        """How fast answers of a replica go on, in the mean of all replicas that gave some."""
        every = [replica.estimator.decode_line for replica in self._replicas.values()]
        lines = [line for line in every if line is not None]
        if not lines:
            return self._last_line
        return DecodeLine(
            statistics.fmean(line.base for line in lines),
            statistics.fmean(line.each for line in lines),
        )

    def prompts(self, now: float) -> Prompts:
        """What came of late, without what caches held."""
        starts = [replica.estimator.start_seconds for replica in self._replicas.values()]
        return self._arrivals.prompts(min(starts, default=0.0), now)

    def dispatch(self, request: RouteRequest, decision: Decision, now: float) -> Ticket:
        """Counts the request as sent to the decision's replica."""
        replica = self._replicas[decision.replica_id]
        self._index.sweep()
        for other in self._replicas.values():
            other.own.expire(now)
        known = decision.predicted_hit_tokens // self.block_size
        if self._index.is_crowded:
            self._index.touch(request.block_hashes[:known])
        replica.own.add(request.block_hashes, known, now)
        uncached = request.num_prompt_tokens - int(decision.predicted_hit_tokens * replica.trust)
        in_flight = replica.estimator.begin(max(1, uncached), now, silent=not request.streams)
        self._arrivals.add(max(1, uncached) / (replica.estimator.rate or self.usual_rate), now)
        return Ticket(self, replica, request, known, in_flight)

    def _learn(
        self,
        replica: _Replica,
        request: RouteRequest,
        known: int,
        now: float,
        prefilled: bool,
        actual_hit_tokens: int | None,
    ) -> None:
        """Heals the index by what a replica's cache really held."""
        if self._replicas.get(replica.replica_id) is not replica:
            return
        if not prefilled:
            replica.own.retract(request.block_hashes[known:])
        actual = (actual_hit_tokens or 0) // self.block_size
        if not known:
            held = actual >= min(HEAD_BLOCKS, len(request.block_hashes)) > 0
            replica.holds_unknown += _UNKNOWN_WEIGHT * (held - replica.holds_unknown)
        if actual_hit_tokens is None:
            return
        if actual > known:
            # It held them before, so no event will tell.
            replica.own.confirm(request.block_hashes[known:actual])
        if known:
            truth = min(1.0, actual / known)
            replica.trust += _TRUST_WEIGHT * (truth - replica.trust)
            if replica.sends_events and replica.trust < _LEAST_TRUST:
                self._ignore_events(replica, now)
                return
        if actual >= known:
            replica.shortfalls.pop(request.head, None)
            return
        times = replica.shortfalls.pop(request.head, 0) + 1
        if times < _SHORTFALLS:
            replica.shortfalls[request.head] = times
            if len(replica.shortfalls) > _WATCHED_PREFIXES:
                replica.shortfalls.popitem(last=False)
            return
        wrong = request.block_hashes[actual:]
        replica.own.confirm(wrong)
        for member in replica.members:
            self._index.discard(member, wrong)

    def _ignore_events(self, replica: _Replica, now: float) -> None:
        """The events do not tell the truth: go by what was sent to the replica, for a while."""
        self.reset(replica.replica_id)
        replica.estimator.forget_speed(now)  # prompts had more to be computed than was thought
        replica.sends_events = False
        replica.ignore_events_until = now + _IGNORED_SECONDS
        replica.own.keep_seconds = KEEP_SECONDS

    def apply_events(self, replica_id: str, batch: KVEventBatch) -> None:
        """Takes in what a replica's prefix cache gained and lost; from then on its events are the
        truth about it, unless its hits are far from what they said."""
        replica = self._replicas.get(replica_id)
        if replica is None or self._now < replica.ignore_events_until:
            return
        if not replica.sends_events:
            replica.sends_events = True
            replica.holds_unknown = 0.0
            replica.own.keep_seconds = CONFIRM_SECONDS
        member = self._member(replica, batch.data_parallel_rank or 0)
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self._index.reset(member)
                replica.own.clear()
                continue
            if event.medium not in _MEDIUM:
                continue
            if isinstance(event, BlockStored) and event.kv_cache_spec_kind == "sliding_window":
                replica.window_groups.add(event.group_idx)
            if event.group_idx in replica.window_groups:
                continue
            hashes = [
                h
                for h in event.block_hashes
                if isinstance(h, bytes) and 0 < len(h) <= _LONGEST_HASH
            ]
            if isinstance(event, BlockStored):
                self._index.store(member, reversed(hashes))
            else:
                self._index.discard(member, hashes)
            replica.own.confirm(hashes)

    def _member(self, replica: _Replica, rank: int) -> str:
        while len(replica.members) <= rank:
            member = f"{replica.replica_id}#{len(replica.members)}"
            self._index.add_replica(member)
            replica.members.append(member)
        return replica.members[rank]

    def reset(self, replica_id: str) -> None:
        """Forgets what a replica holds, as when events were lost or it restarted."""
        replica = self._replicas.get(replica_id)
        if replica is not None:
            replica.resets += 1
            replica.own.clear()
            replica.shortfalls.clear()
            replica.trust = 1.0
            for member in replica.members:
                self._index.reset(member)

    def states(self, now: float) -> list[ReplicaState]:
        """What is known of each replica."""
        usual_rate = self.usual_rate
        states = []
        for replica in self._replicas.values():
            estimator = replica.estimator
            rate = estimator.rate or usual_rate
            states.append(
                ReplicaState(
                    replica.replica_id,
                    estimator.in_flight,
                    estimator.pending_tokens,
                    rate,
                    estimator.wait_seconds(now, rate),
                    replica.sends_events,
                    replica.trust,
                    *estimator.queued,
                    estimator.decoding,
                    estimator.decode_slots,
                    estimator.kv_use,
                )
            )
        return states
