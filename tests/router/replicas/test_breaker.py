"""When a replica gets requests again after failures."""

from pagelet.router.replicas.breaker import Breaker


def test_it_trips_after_failures_in_a_row_only() -> None:
    breaker = Breaker(3)
    for _ in range(5):
        assert not breaker.failure(0.0)
        assert not breaker.failure(0.0)
        breaker.success()
    assert [breaker.failure(0.0) for _ in range(3)] == [False, False, True]
    assert breaker.open_until == 1.0


def test_each_further_failure_doubles_the_time_up_to_a_bound() -> None:
    breaker, now, waits = Breaker(2), 0.0, []
    breaker.failure(now)
    for _ in range(8):
        assert breaker.failure(now)
        waits.append(breaker.open_until - now)
        now = breaker.open_until
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    breaker.success()
    assert not breaker.failure(now)


def test_what_was_under_way_when_it_tripped_does_not_count() -> None:
    breaker = Breaker(2)
    assert [breaker.failure(0.5) for _ in range(32)].count(True) == 1
    assert breaker.open_until == 1.5
