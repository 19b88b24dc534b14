import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.agent.limits import Admission, RateLimiter
from pagelet.protocol.openai.errors import retry_after


def test_a_burst_then_the_rate():
    limiter = RateLimiter(2)
    first, second, third = (limiter.take("a", now=10.0) for _ in range(3))
    assert [first.remaining, second.remaining] == [1, 0]
    assert not third.allowed
    assert third.retry_after == pytest.approx(30)
    assert third.reset_after == pytest.approx(60)
    assert not limiter.take("a", now=39.9).allowed
    assert limiter.take("a", now=40.1).allowed
    assert limiter.take("b", now=40.1).allowed


@given(
    rate=st.integers(1, 600),
    gaps=st.lists(st.floats(0, 60), min_size=1, max_size=60),
)
def test_no_client_gets_more_than_its_rate(rate, gaps):
    limiter = RateLimiter(rate)
    now, passed = 0.0, 0
    for gap in gaps:
        now += gap
        decision = limiter.take("a", now=now)
        passed += decision.allowed
        assert decision.remaining >= 0
    assert passed <= decision.limit + rate / 60 * now + 1e-6


def test_waiting_as_told_is_enough():
    limiter = RateLimiter(1)
    assert limiter.take("a", now=0.0).allowed
    wait = limiter.take("a", now=1.0).retry_after
    assert limiter.take("a", now=1.0 + wait + 1e-9).allowed


def test_clients_are_forgotten_in_order(monkeypatch):
    monkeypatch.setattr("pagelet.agent.limits._MAX_CLIENTS", 2)
    limiter = RateLimiter(1)
    for client in "abac":
        limiter.take(client, now=0.0)
    assert not limiter.take("a", now=0.0).allowed
    assert limiter.take("b", now=0.0).allowed


def test_admission_takes_all_or_none():
    admission = Admission(3)
    assert admission.admit(2)
    assert not admission.admit(2)
    assert admission.admit(1)
    admission.release(3)
    assert admission.in_flight == 0
    with pytest.raises(AssertionError):
        admission.release(1)
    assert Admission(None).admit(10**9)


def test_retry_after_is_whole_seconds():
    assert [retry_after(seconds) for seconds in (0, 0.2, 1, 1.01)] == ["1", "1", "1", "2"]
