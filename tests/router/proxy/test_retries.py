"""Retries are bounded by the requests of the last ten seconds."""

from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.proxy.retries import RetryBudget


def test_ten_are_always_allowed_and_come_back() -> None:
    budget = RetryBudget(0.2)
    assert [budget.take(0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert not budget.take(9.0)
    assert budget.take(10.5)


@given(st.integers(0, 500), st.floats(0, 1))
def test_more_are_allowed_where_there_are_more_requests(requests: int, share: float) -> None:
    budget = RetryBudget(share)
    for number in range(requests):
        budget.on_request(number / 100)
    granted = sum(budget.take(5.0) for _ in range(1000))
    assert granted == 10 + int(share * requests)
