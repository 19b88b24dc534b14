import pytest

from pagelet.router.routing.arrivals import ArrivalRate


def test_a_steady_stream_is_its_rate_and_a_pause_ends_in_nothing():
    rate = ArrivalRate(30.0)
    for step in range(3000):
        rate.add(0.2, step / 10)  # 2 a second, for five minutes
    assert rate.per_second(300.0) == pytest.approx(2.0, rel=0.01)
    assert rate.per_second(329.0) == pytest.approx(2.0 * 2.718 ** (-29 / 30), rel=0.01)
    assert rate.per_second(331.0) == 0


def test_a_burst_counts_for_a_while_whenever_it_is_looked_at():
    rate = ArrivalRate(10.0)
    rate.add(5.0, 0.0)
    total = sum(rate.per_second(second / 10) * 0.1 for second in range(1000))
    assert total == pytest.approx(5.0 * (1 - 1 / 2.718), rel=0.02)


def test_what_comes_is_seen_however_little_it_is():
    rate = ArrivalRate(30.0)
    for begin in (0.0, 100.0):
        rate.add(1e-9, begin)
        assert all(rate.per_second(begin + second) > 0 for second in range(30))
        assert rate.per_second(begin + 31.0) == 0


def test_nothing_came_yet():
    assert ArrivalRate(30.0).per_second(1e9) == 0
