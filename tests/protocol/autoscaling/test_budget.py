from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.autoscaling.budget import Claim, allot

rest = {
    "priority": st.integers(-2, 2),
    "each": st.integers(1, 8),
    "least": st.integers(0, 3),
    "wanted": st.integers(0, 12),
}
claims = st.lists(st.builds(Claim, name=st.sampled_from("abcdef"), **rest), max_size=6).map(
    lambda found: list({claim.name: claim for claim in found}.values())
)


def claim(name, priority=0, each=1, least=0, wanted=0):
    return Claim(name=name, priority=priority, each=each, least=least, wanted=wanted)


@given(st.integers(0, 60), claims)
def test_nobody_gets_more_than_wanted_nor_all_more_than_there_is(budget, asked):
    given_to = allot(budget, asked)
    assert set(given_to) == {claim.name for claim in asked}
    assert all(0 <= given_to[claim.name] <= claim.wanted for claim in asked)
    used = sum(given_to[claim.name] * claim.each for claim in asked)
    assert used <= budget
    short = [claim for claim in asked if given_to[claim.name] < claim.wanted]
    assert all(claim.each > budget - used for claim in short)  # nothing that fits is kept back


@given(st.integers(0, 60), claims)
def test_the_order_in_which_services_are_named_does_not_matter(budget, asked):
    assert allot(budget, asked) == allot(budget, reversed(asked))


def test_the_least_comes_first_then_priority_then_equal_parts():
    asked = [claim("a", wanted=9, least=1), claim("b", wanted=9), claim("c", 1, wanted=4)]
    assert allot(8, asked) == {"a": 2, "b": 2, "c": 4}
    assert allot(1, asked) == {"a": 1, "b": 0, "c": 0}
    assert allot(100, asked) == {"a": 9, "b": 9, "c": 4}


def test_a_large_replica_that_does_not_fit_leaves_the_rest_to_others():
    assert allot(5, [claim("a", 1, each=4, wanted=2), claim("b", wanted=3)]) == {"a": 1, "b": 1}
