"""Delays between starts of a process that keeps dying."""

from pagelet.process.backoff import CrashBackoff


def delays_until_crash_loop(healthy_seconds: float) -> list[float]:
    backoff, delays = CrashBackoff(), []
    while not backoff.is_crash_loop:
        delays.append(backoff.record_failure(healthy_seconds))
    return delays


def test_doubles_and_is_a_crash_loop_when_it_never_served() -> None:
    assert delays_until_crash_loop(0) == [0.5, 1, 2, 4, 8]


def test_doubles_up_to_30_seconds_when_it_served_before() -> None:
    assert delays_until_crash_loop(1) == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30]


def test_starts_anew_after_a_minute_of_health() -> None:
    backoff = CrashBackoff()
    for _ in range(4):
        backoff.record_failure(0)
    assert backoff.record_failure(61.0) == 0.5
    assert backoff.failures == 1
