"""Consistent hashing: who moves, who agrees, and what is bounded."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.block_hash import hash_blocks
from pagelet.router.routing.ring import HEAD_BLOCKS, HashRing, prompt_head

KEYS = [f"key {number}".encode() for number in range(4000)]
NAMES = [f"replica-{number}" for number in range(10)]


def ring_of(names: list[str]) -> HashRing:
    ring = HashRing()
    for name in names:
        ring.add(name)
    return ring


def owner(ring: HashRing, key: bytes) -> str:
    found = ring.first(key, lambda _: True)
    assert found is not None
    return found


def test_only_the_keys_of_a_replica_that_leaves_move() -> None:
    ring = ring_of(NAMES)
    before = {key: owner(ring, key) for key in KEYS}
    ring.remove(NAMES[3])
    after = {key: owner(ring, key) for key in KEYS}
    assert all(before[key] == NAMES[3] for key in KEYS if before[key] != after[key])
    moved = sum(before[key] != after[key] for key in KEYS)
    assert 0.05 < moved / len(KEYS) < 0.15  # about one in ten
    ring.add(NAMES[3])
    assert {key: owner(ring, key) for key in KEYS} == before


def test_rings_agree_whatever_the_order_in_which_replicas_came() -> None:
    shuffled = NAMES.copy()
    random.Random(1).shuffle(shuffled)
    one, other = ring_of(NAMES), ring_of(shuffled)
    assert [list(one.walk(key)) for key in KEYS[:200]] == [
        list(other.walk(key)) for key in KEYS[:200]
    ]


def test_shares_are_about_even() -> None:
    ring = ring_of(NAMES)
    shares = Counter(owner(ring, key) for key in KEYS)
    assert max(shares.values()) < 1.6 * len(KEYS) / len(NAMES)
    assert min(shares.values()) > 0.5 * len(KEYS) / len(NAMES)


def test_a_walk_visits_everyone_once() -> None:
    ring = ring_of(NAMES)
    assert sorted(ring.walk(b"anything")) == sorted(NAMES)
    assert list(HashRing().walk(b"anything")) == []


@given(
    loads=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 50).map(float), min_size=1),
    key=st.binary(min_size=1, max_size=8),
    factor=st.floats(1.01, 3),
)
def test_the_load_is_bounded(loads: dict[str, float], key: bytes, factor: float) -> None:
    ring = ring_of(NAMES)
    chosen = ring.bounded(key, loads, factor)
    assert chosen in loads
    mean = (sum(loads.values()) + 1) / len(loads)
    assert loads[chosen] + 1 < factor * mean + 1
    for passed in ring.walk(key):
        if passed == chosen:
            break
        assert passed not in loads or loads[passed] + 1 > factor * mean


def test_everything_at_once_stays_within_the_bound() -> None:
    ring, loads = ring_of(NAMES), dict.fromkeys(NAMES, 0.0)
    for _ in range(1000):
        chosen = ring.bounded(b"all the same", loads, 1.25)
        assert chosen is not None
        loads[chosen] += 1
    assert max(loads.values()) <= 126
    assert ring.bounded(b"x", {}, 1.25) is None


def test_prompts_that_begin_alike_have_one_head() -> None:
    common = list(range(16 * HEAD_BLOCKS))
    heads = {
        prompt_head(hash_blocks(common + [own] * count, 16), b"")
        for own, count in ((1, 5), (2, 40), (3, 500))
    }
    assert len(heads) == 1
    assert prompt_head([], b"one") != prompt_head([], b"two")
    short = hash_blocks(common[:48], 16)
    assert prompt_head(short, b"") == short[-1]
