"""The simulated day: nothing is lost, and the same comes out each time."""

import pytest

from pagelet.bench.autoscaling.simulate import METHODS, Hardware, Method, simulate
from pagelet.bench.autoscaling.trace import make_day
from pagelet.protocol.autoscaling.scaler import ScalingBounds

HARDWARE = Hardware(startup_seconds=20.0, queue_size=50, queue_seconds=30.0)
BOUNDS = ScalingBounds(min_replicas=0, max_replicas=8, scale_down_seconds=60.0)
ARRIVALS = make_day(2.0, 1, seconds=3600)


def test_the_day_is_in_order_and_has_a_night() -> None:
    times = [arrival.when for arrival in ARRIVALS]
    assert times == sorted(times)
    at_night = sum(when < 600 for when in times)  # of a day in fast motion: until four o'clock
    assert at_night < sum(1800 < when < 2400 for when in times) / 2
    assert make_day(2.0, 1, seconds=3600) == ARRIVALS


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_request_is_answered_or_shed_and_replicas_keep_to_their_bounds(
    method: Method,
) -> None:
    measure = method.measure(method.usual, HARDWARE.slots)
    run = simulate(ARRIVALS, measure, BOUNDS, HARDWARE)
    assert len(run.ttfts) + run.shed == len(ARRIVALS)
    assert min(run.waits) >= -1e-9
    assert all(0 <= count <= 8 for _, count in run.counts)
    # Replicas were paid for while they worked.
    work = sum(arrival.uncached_tokens for arrival in ARRIVALS) / HARDWARE.prefill_tokens_per_second
    if not run.shed:
        assert run.replica_seconds > work


def test_without_requests_the_last_replica_goes_and_the_next_one_is_held() -> None:
    (busy, *_) = ARRIVALS
    late = ARRIVALS[-1]
    measure = METHODS[0].measure(2.0, HARDWARE.slots)
    run = simulate([busy, late], measure, BOUNDS, HARDWARE)
    assert run.held == 1
    assert run.shed == 0
    assert run.waits[-1] >= HARDWARE.startup_seconds - 1e-9
    assert min(count for _, count in run.counts) == 0
    assert run.replica_seconds < late.when / 2
