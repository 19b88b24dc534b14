"""The prefix index against a dict of sets."""

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pagelet.protocol.block_hash import hash_blocks
from pagelet.router.routing.prefix_index import PrefixIndex

BLOCKS = 6
CHAINS = [
    hash_blocks([first] * 4 + [second] * 8 + [third] * 12, 4)
    for first, second, third in itertools.product(range(2), repeat=3)
]
REPLICAS = [f"replica-{number}" for number in range(5)]
replicas = st.sampled_from(REPLICAS)
chains = st.sampled_from(CHAINS)
lengths = st.integers(0, BLOCKS)


class IndexMachine(RuleBasedStateMachine):
    """Replicas come, go and start anew; each holds prefixes, as engines' caches do."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(10_000)
        self.model: dict[str, set[bytes]] = {}

    @rule(replica=replicas)
    def come(self, replica: str) -> None:
        if replica not in self.model:
            self.index.add_replica(replica)
            self.model[replica] = set()

    @rule(replica=replicas)
    def go(self, replica: str) -> None:
        if self.model.pop(replica, None) is not None:
            self.index.remove_replica(replica)

    @rule(replica=replicas)
    def start_anew(self, replica: str) -> None:
        if replica in self.model:
            self.index.reset(replica)
            self.model[replica] = set()

    @rule(replica=replicas, chain=chains, length=lengths)
    def store(self, replica: str, chain: list[bytes], length: int) -> None:
        if replica in self.model:
            self.index.store(replica, chain[:length])
            self.model[replica] |= set(chain[:length])

    @rule(replica=replicas, chain=chains, length=lengths)
    def evict(self, replica: str, chain: list[bytes], length: int) -> None:
        """A block goes with all that come after it, on whatever branch."""
        if replica in self.model:
            kept = set(chain[:length])
            gone = {h for c in CHAINS if c[:length] == chain[:length] for h in c} - kept
            self.index.discard(replica, gone)
            self.model[replica] -= gone

    @rule(chain=chains, length=lengths)
    def touch(self, chain: list[bytes], length: int) -> None:
        self.index.touch(chain[:length])

    @rule(times=st.integers(1, 300))
    def sweep(self, times: int) -> None:
        for _ in range(times):
            self.index.sweep()

    @invariant()
    def finds_the_longest_prefixes(self) -> None:
        for chain in CHAINS:
            expected = {
                replica: length
                for replica, held in self.model.items()
                if (length := sum(1 for _ in itertools.takewhile(held.__contains__, chain)))
            }
            assert self.index.longest_prefixes(chain) == expected

    def teardown(self) -> None:
        for _ in range(2 * 256 + 1):
            self.index.sweep()
        held = set().union(*self.model.values()) if self.model else set()
        assert len(self.index) == len(held), "what gone replicas held was not swept"


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=60, stateful_step_count=30)


def chain(number: int, blocks: int) -> list[bytes]:
    return hash_blocks([number] * (4 * blocks), 4)


def test_a_slot_is_taken_again_once_it_is_clean() -> None:
    index = PrefixIndex(100_000)
    index.add_replica("stays")
    index.store("stays", chain(0, 3))
    for number in range(2000):
        name = f"comes and goes {number}"
        index.add_replica(name)
        assert index.longest_prefixes(chain(0, 3)) == {"stays": 3}
        index.store(name, chain(0, 3))
        index.remove_replica(name)
        for _ in range(64):
            index.sweep()
    mask = max(max(shard.values(), default=0) for shard in index._shards)
    assert mask.bit_length() < 64, "masks grow with every replica that ever was"


def test_the_size_is_bounded_and_what_was_used_last_stays() -> None:
    index = PrefixIndex(256 * 128)
    index.add_replica("one")
    hot = chain(0, 100)
    index.store("one", reversed(hot))
    for number in range(1, 3000):
        index.store("one", reversed(chain(number, 20)))
        if index.is_crowded:
            index.touch(hot)
        assert len(index) <= 256 * 128
    assert index.is_crowded
    assert index.longest_prefixes(hot) == {"one": 100}
    assert index.longest_prefixes(chain(1, 20)) == {}


def test_a_hole_in_the_middle_costs_no_more_than_what_follows() -> None:
    """A cache that gives up a block but keeps the next breaks what bisection relies on; what is
    found then still begins with blocks that are held."""
    index, whole = PrefixIndex(1000), chain(0, 9)
    index.add_replica("one")
    index.store("one", whole)
    index.discard("one", whole[4:5])
    assert index.longest_prefixes(whole)["one"] in (4, 9)
    index.discard("one", whole[:1])
    assert index.longest_prefixes(whole) == {}
