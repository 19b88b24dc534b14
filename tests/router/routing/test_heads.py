"""Which heads of prompts come again, and how often."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.routing.policies.heads import Heads


@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_share_is_of_the_requests_before(sequence: list[int]) -> None:
    heads = Heads()
    seen: list[int] = []
    for number in sequence:
        was_there, share = heads.see(b"%d" % number)
        assert was_there == (number in seen)
        assert 0 <= share <= seen.count(number) / 300
        assert (share > 0) == was_there
        seen.append(number)


@pytest.mark.parametrize("popularity", [0.1, 0.7])
def test_it_is_what_came_lately(popularity: float) -> None:
    rng, heads, other = random.Random(0), Heads(), iter(range(10**6))
    for _ in range(3000):
        head = b"hot" if rng.random() < popularity else b"%d" % next(other)
        heads.see(head)
    assert heads.see(b"hot")[1] == pytest.approx(popularity, abs=0.07)
    for _ in range(1500):
        heads.see(b"%d" % next(other))
    assert heads.see(b"hot")[1] < 0.01


def test_what_was_not_there_for_long_is_forgotten() -> None:
    heads = Heads()
    heads.see(b"first")
    assert heads.see(b"first")[0]
    for number in range(10_000):
        heads.see(b"%d" % number)
    assert not heads.see(b"first")[0]


def test_new_heads_tell_whether_they_come_again() -> None:
    heads = Heads()
    assert heads.again == 1  # until something is known
    for number in range(300):
        heads.see(b"%d" % number)
    assert heads.again < 0.01
    for number in range(300, 600):
        for _ in range(3):
            heads.see(b"%d" % number)
    assert heads.again == pytest.approx(1, abs=0.01)
