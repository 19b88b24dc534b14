import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.autoscaling.scaler import TOLERANCE, Scaler, ScalingBounds

BOUNDS = ScalingBounds(min_replicas=0, max_replicas=64, scale_down_seconds=60.0)
counts = st.integers(0, 80)
demands = st.floats(0, 100)


def run(scaler, bounds, current, demands, start=0.0, every=5.0):
    """The count after each of some demands; None is an unknown one."""
    seen = []
    for step, demand in enumerate(demands):
        current = scaler.decide(bounds, current, demand, start + step * every)
        seen.append(current)
    return seen


@given(counts, st.floats(0.01, 60))
def test_a_steady_demand_is_met_and_then_left_alone(current, demand):
    seen = run(Scaler(), BOUNDS, min(current, 64), [demand] * 60)
    last = seen[-1]
    assert seen[-10:] == [last] * 10
    assert last >= math.floor(demand / (1 + TOLERANCE))
    assert last == min(64, math.ceil(demand)) or abs(demand / last - 1) <= TOLERANCE


@given(st.integers(1, 64), st.lists(st.none(), min_size=1, max_size=100))
def test_what_is_not_known_holds_the_count(current, unknown):
    assert set(run(Scaler(), BOUNDS, current, unknown)) == {current}


def test_an_outage_does_not_count_as_time_without_demand():
    seen = run(Scaler(), BOUNDS, 8, [8.0] * 20 + [None] * 100 + [1.0] * 30)
    assert set(seen[:120]) == {8}
    asked = seen[120:]
    assert asked[:11] == [8] * 11  # the window begins with the first demand that is known again
    assert asked[-1] == 1


@given(st.integers(0, 64), st.lists(demands, min_size=1, max_size=30))
def test_a_lower_bound_never_shrinks(current, lower_bounds):
    scaler = Scaler()
    for step, demand in enumerate(lower_bounds):
        count = scaler.decide(BOUNDS, current, demand, step * 100.0, is_complete=False)
        assert count >= current
        current = count


@given(counts, st.lists(st.one_of(st.none(), demands), max_size=40), st.integers(0, 5))
def test_the_count_stays_within_bounds(current, asked, least):
    bounds = ScalingBounds(min_replicas=least, max_replicas=least + 3, scale_down_seconds=5.0)
    assert all(least <= count <= least + 3 for count in run(Scaler(), bounds, current, asked))


@given(st.lists(demands, min_size=30, max_size=30))
def test_it_shrinks_only_to_what_was_enough_for_all_of_the_window(asked):
    scaler, current = Scaler(), 64
    for step, demand in enumerate(asked):
        count = scaler.decide(BOUNDS, current, demand, step * 5.0)
        if count < current:
            recent = asked[max(0, step - 12) : step + 1]
            assert len(recent) == 13
            assert count * (1 + TOLERANCE) >= min(64, max(recent))
        current = count


def test_growth_waits_for_its_window_but_the_first_replica_does_not():
    bounds = ScalingBounds(min_replicas=0, max_replicas=9, scale_up_seconds=20.0)
    assert run(Scaler(), bounds, 0, [0.0] * 10 + [3.0] * 6)[9:] == [0, 1, 1, 1, 1, 3, 3]


@pytest.mark.parametrize(("current", "most"), [(1, 5), (3, 7), (8, 16)])
def test_growth_is_bounded_within_fifteen_seconds(current, most):
    seen = run(Scaler(), BOUNDS, current, [60.0] * 4, every=5.0)
    assert seen[:3] == [most] * 3
    assert run(Scaler(), BOUNDS, current, [60.0] * 20)[-1] >= 60 / (1 + TOLERANCE)


def test_what_is_remembered_of_a_steady_service_does_not_grow():
    scaler = Scaler()
    remembered = []
    for start in (0.0, 1000.0):
        run(scaler, BOUNDS, 4, [4.0] * 200, start)
        remembered.append([len(history) for history in vars(scaler).values()])
    assert remembered[0] == remembered[1]


def test_the_last_replica_goes_after_the_window_without_any_demand():
    seen = run(Scaler(), BOUNDS, 1, [0.02] * 5 + [0.0] * 14)
    assert seen[:16] == [1] * 16
    assert seen[-1] == 0


@given(counts, st.one_of(st.none(), demands), st.integers(1, 64))
def test_as_many_as_are_scheduled_are_there_whatever_the_demand(current, demand, scheduled):
    scaler, current = Scaler(), min(current, 64)
    for step in range(60):
        now = step * 5.0
        current = scaler.decide(BOUNDS, current, demand, now, scheduled=scheduled)
    assert current >= scheduled


def test_scheduled_replicas_go_when_none_asked_for_them_in_the_window_after():
    scaler, current, seen = Scaler(), 0, []
    for step in range(60):
        now = step * 5.0
        current = scaler.decide(BOUNDS, current, 0.0, now, scheduled=3 if 10 <= step < 20 else 0)
        seen.append(current)
    assert seen[:10] == [0] * 10
    assert seen[11:32] == [3] * 21  # the first is never waited for; 60 s are twelve looks
    assert seen[32:] == [0] * 28
