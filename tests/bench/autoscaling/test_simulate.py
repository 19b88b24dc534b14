"""The simulated day: nothing is lost, and the same comes out each time."""

import statistics

import pytest

from pagelet.bench.autoscaling.simulate import (
    METHODS,
    Hardware,
    Method,
    by_tpot,
    by_ttft,
    simulate,
)
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


@pytest.mark.parametrize("objective", [2.0, 5.0])
def test_a_time_to_first_token_is_kept_where_replicas_come_in_time(objective: float) -> None:
    quick = Hardware(startup_seconds=0.0)
    bounds = ScalingBounds(min_replicas=1, max_replicas=64, scale_down_seconds=120.0)
    run = simulate(ARRIVALS, by_ttft(objective, quick.slots), bounds, quick)
    could = [
        ttft for ttft, wait in zip(run.ttfts, run.waits, strict=True) if ttft - wait <= objective
    ]
    assert sum(ttft <= objective for ttft in could) >= 0.93 * len(could)


def test_a_time_between_tokens_is_kept_and_a_longer_one_costs_less() -> None:
    crowded = Hardware(
        prefill_tokens_per_second=20_000, token_seconds=0.02, token_seconds_each=0.004
    )
    bounds = ScalingBounds(min_replicas=1, max_replicas=64, scale_down_seconds=120.0)
    costs = []
    for objective in (0.03, 0.06):
        run = simulate(ARRIVALS, by_tpot(objective, 64), bounds, crowded)
        assert statistics.fmean(run.tpots) <= objective
        costs.append(run.replica_seconds)
    assert costs[1] < 0.8 * costs[0]
