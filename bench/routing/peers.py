"""What other routers do, as far as their documentation and options say, to compare with.

Each has the constants that it ships with. They are fed as the real ones are: `token_cost` by KV
events and its own decisions, the trees by their own decisions alone.
"""

import abc
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pagelet.protocol.kv_events import BlockStored, KVEvent
from pagelet.router.routing.own_decisions import OwnDecisions
from pagelet.router.routing.prefix_index import PrefixIndex
from pagelet.router.routing.types import RouteRequest

_MAX_BLOCKS = 2_000_000
_BLOCK_SIZE = 16
_SIBLING_SECONDS = 5.0
"""Dynamo's, until events must have confirmed a decision."""
_MATCH = 0.3
"""Share of a prompt that must match for a tree to be followed (SGLang, SMG, vllm-router)."""
_ABSOLUTE, _RELATIVE = 64, 1.5
"""Thresholds of balance of the same three."""
_LEAST_SPILL = 4
"""Requests over the mean that SMG never takes for imbalance."""


class Sent:
    """A request on its way: what the router counts as load until it ends."""

    def __init__(self, router: "_Peer", replica: int, request: RouteRequest, uncached: int) -> None:
        self._router = router
        self._replica = replica
        self._blocks = list(dict.fromkeys(request.block_hashes))
        self._uncached = uncached
        router.load[replica] += 1
        router.pending[replica] += uncached
        router.active[replica].update(self._blocks)

    def on_first_byte(self, now: float) -> None:
        """Its prefill is done."""
        self._router.pending[self._replica] -= self._uncached
        self._uncached = 0

    def on_tokens(self, count: int, now: float) -> None:
        """None of them counts those."""

    def on_end(self, now: float, *, ok: bool, actual_hit_tokens: int | None = None) -> None:
        """It is no load any more."""
        self.on_first_byte(now)
        self._router.load[self._replica] -= 1
        active = self._router.active[self._replica]
        active.subtract(self._blocks)
        for block in self._blocks:
            if not active[block]:
                del active[block]


class _Peer(abc.ABC):
    """An index of who holds what, and the load."""

    def __init__(self, num_replicas: int, keep_seconds: float) -> None:
        self._index = PrefixIndex(_MAX_BLOCKS)
        self._names = [str(number) for number in range(num_replicas)]
        self._own = []
        for name in self._names:
            self._index.add_replica(name)
            own = OwnDecisions(self._index, name)
            own.keep_seconds, own.capacity = keep_seconds, _MAX_BLOCKS
            self._own.append(own)
        self.load = [0] * num_replicas
        self.pending = [0] * num_replicas
        """Tokens of prompts that were sent and have not answered, without what was cached."""
        self.active: list[Counter[bytes]] = [Counter() for _ in self._names]
        """Blocks of the requests in flight."""

    def choose(self, request: RouteRequest, now: float) -> tuple[int, int, float, Sent]:
        """See `Router`; no peer predicts a time."""
        for own in self._own:
            own.expire(now)
        found = self._index.longest_prefixes(request.block_hashes)
        matched = [found.get(name, 0) for name in self._names]
        chosen = self._pick(request, matched)
        self._own[chosen].add(request.block_hashes, matched[chosen], now)
        hit = min(matched[chosen] * _BLOCK_SIZE, request.num_prompt_tokens - 1)
        return chosen, hit, 0.0, Sent(self, chosen, request, request.num_prompt_tokens - hit)

    @abc.abstractmethod
    def _pick(self, request: RouteRequest, matched: Sequence[int]) -> int:
        """The replica, of which so many blocks of the prompt are known each."""

    @abc.abstractmethod
    def on_events(self, replica: int, events: list[KVEvent], now: float) -> None:
        """See `Router`."""


class TokenCost(_Peer):
    """Dynamo's cost, in blocks: prompts to be computed, this one's uncached part among them, and
    the blocks that requests in flight hold; the least wins. The policy kv_aware of vllm-router
    0.1.17 also takes the least cost in tokens and counts what it sent at once."""

    def __init__(self, num_replicas: int) -> None:
        super().__init__(num_replicas, _SIBLING_SECONDS)

    def _pick(self, request: RouteRequest, matched: Sequence[int]) -> int:
        blocks = len(request.block_hashes)

        def cost(number: int) -> float:
            uncached = request.num_prompt_tokens - matched[number] * _BLOCK_SIZE
            prefill = (self.pending[number] + max(0, uncached)) / _BLOCK_SIZE
            return prefill + len(self.active[number]) + blocks - matched[number]

        return min(range(len(matched)), key=lambda number: (cost(number), self.load[number]))

    def on_events(self, replica: int, events: list[KVEvent], now: float) -> None:
        """Enters what was stored and removed."""
        name = self._names[replica]
        for event in events:
            hashes = [h for h in getattr(event, "block_hashes", ()) if isinstance(h, bytes)]
            if isinstance(event, BlockStored):
                self._index.store(name, reversed(hashes))
            else:
                self._index.discard(name, hashes)
            self._own[replica].confirm(hashes)


class Tree(_Peer):
    """SGLang's cache_aware, which SMG and vllm-router inherited: the replica with the longest match
    in a tree of what was sent, if that is a good part of the prompt, else the one with the smallest
    tree. `spill` says when a loaded replica is not followed."""

    def __init__(self, num_replicas: int, *, spill: bool) -> None:
        super().__init__(num_replicas, math.inf)
        self._spill = spill

    def _pick(self, request: RouteRequest, matched: Sequence[int]) -> int:
        numbers, load = range(len(matched)), self.load
        shortest = min(numbers, key=load.__getitem__)
        busiest = max(load)
        if not self._spill:  # vllm-router: all of them together
            apart = busiest - load[shortest]
            if apart > _ABSOLUTE and busiest > _RELATIVE * load[shortest]:
                return shortest
        best = max(numbers, key=matched.__getitem__)
        if matched[best] * _BLOCK_SIZE <= _MATCH * request.num_prompt_tokens:
            return min(numbers, key=lambda number: len(self._own[number]))
        if self._spill:  # SMG: the one that matches, against the mean
            mean = sum(load) / len(load)
            margin = min(_ABSOLUTE, max(_LEAST_SPILL, 2 * math.sqrt(mean)))
            if load[best] > mean + margin and load[best] > _RELATIVE * mean:
                return shortest
        return best

    def on_events(self, replica: int, events: list[KVEvent], now: float) -> None:
        """See `Router`; a tree does not hear them."""


def make_peer(name: str, num_replicas: int) -> _Peer:
    """The router of that name, in front of so many replicas."""
    return PEERS[name](num_replicas)


PEERS: Mapping[str, Callable[[int], _Peer]] = {
    "token_cost": TokenCost,
    "tree_switch": functools.partial(Tree, spill=False),
    "tree_spill": functools.partial(Tree, spill=True),
}
