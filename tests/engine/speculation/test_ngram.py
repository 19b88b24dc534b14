"""Prompt lookup finds what a scan of the whole sequence finds."""

from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.speculation.ngram import NgramIndex


def scan(tokens: list[int], shortest: int, longest: int, count: int) -> list[int]:
    """The continuation of the longest earlier match of the last tokens, of equals the latest."""
    best, best_length = -1, shortest - 1
    for place in range(len(tokens) - 1, 0, -1):
        length = 0
        while length < min(longest, place) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        if length > best_length:
            best, best_length = place, length
    if best < 0:
        return []
    continued = list(tokens)
    for at in range(best, best + count):
        continued.append(continued[at])
    return continued[len(tokens) :]


@given(
    pieces=st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=5),
    shortest=st.integers(1, 3),
    more=st.integers(0, 3),
    count=st.integers(1, 6),
)
def test_index_agrees_with_a_scan(
    pieces: list[list[int]], shortest: int, more: int, count: int
) -> None:
    index = NgramIndex(shortest, shortest + more)
    tokens = [7]
    for piece in pieces:
        tokens += piece
        assert index.propose(tokens, count) == scan(tokens, shortest, shortest + more, count)


def test_longest_match_wins_and_of_equals_the_latest() -> None:
    index = NgramIndex(2, 4)
    assert index.propose([1, 2, 3, 4, 9, 9, 3, 4, 8, 8, 1, 2, 3, 4], 2) == [9, 9]
    assert index.propose([1, 2, 3, 4, 9, 9, 3, 4, 8, 8, 1, 2, 3, 4, 5, 3, 4], 1) == [5]
    assert NgramIndex(2, 4).propose([5, 6, 1, 5, 6, 2, 7, 5, 6], 1) == [2]


def test_a_period_is_proposed_on_and_on() -> None:
    assert NgramIndex(2, 5).propose([9, 1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert NgramIndex(2, 5).propose([1, 2, 3], 4) == []
