"""What cached blocks begin with, against a search through all of them."""

from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.kv.continuations import Continuations
from pagelet.protocol.block_hash import ROOT, hash_block

TOKENS = st.lists(st.integers(0, 2), min_size=3, max_size=3)
PARENTS = st.sampled_from([ROOT, hash_block(ROOT, [9])])
EXTRAS = st.sampled_from([b"", b"salt"])


def same_tokens(one: list[int], other: list[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@given(
    cached=st.lists(st.tuples(PARENTS, TOKENS, EXTRAS), max_size=8, unique_by=repr),
    gone=st.sets(st.integers(0, 7)),
    parent=PARENTS,
    wanted=st.lists(st.integers(0, 2), max_size=3),
    extras=EXTRAS,
)
def test_blocks_that_begin_alike_are_found(
    cached: list[tuple[bytes, list[int], bytes]],
    gone: set[int],
    parent: bytes,
    wanted: list[int],
    extras: bytes,
) -> None:
    index = Continuations()
    expected = {}
    for number, (before, tokens, theirs) in enumerate(cached):
        block_hash = hash_block(before, tokens, theirs)
        index.add(block_hash, before, tokens)
        count = same_tokens(tokens, wanted)
        if number not in gone and (before, theirs) == (parent, extras) and count:
            expected[block_hash] = count
    for number in sorted(gone & set(range(len(cached)))):
        before, tokens, theirs = cached[number]
        index.remove(hash_block(before, tokens, theirs))
    found = list(index.begin_with(parent, wanted, extras))
    assert dict(found) == expected
    counts = [count for _, count in found]
    assert counts == sorted(counts, reverse=True)


def test_of_many_the_newest_are_compared() -> None:
    index = Continuations()
    for last in range(1000):
        index.add(hash_block(ROOT, [1, 2, last]), ROOT, [1, 2, last])
    assert not list(index.begin_with(ROOT, [1, 2, 0], b""))[8:]
    assert next(index.begin_with(ROOT, [1, 2, 999], b"")) == (hash_block(ROOT, [1, 2, 999]), 3)
