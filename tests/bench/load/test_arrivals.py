"""Arrival processes have the mean and the spread that they are named for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.bench.load.arrivals import arrival_times

COUNT = 20_000


def intervals(rate: float, burstiness: float, seed: int = 0) -> np.ndarray:
    times = arrival_times(COUNT, rate, burstiness, np.random.default_rng(seed))
    return np.diff([0.0, *times])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_intervals_are_gamma_distributed(burstiness: float) -> None:
    gaps = intervals(10.0, burstiness)
    assert gaps.mean() == pytest.approx(0.1)
    variation = gaps.std() / gaps.mean()  # 1 / sqrt(shape)
    assert variation == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_poisson_process_is_exponential_and_memoryless() -> None:
    gaps = intervals(10.0, 1.0)
    for quantile in (0.1, 0.5, 0.9):
        expected = -np.log(1 - quantile) / 10
        assert np.quantile(gaps, quantile) == pytest.approx(expected, rel=0.05)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03


def test_infinite_burstiness_is_constant() -> None:
    np.testing.assert_allclose(intervals(10.0, np.inf), 0.1)


@given(
    count=st.integers(1, 200),
    rate=st.floats(0.01, 1000),
    burstiness=st.floats(0.2, 50),
    seed=st.integers(0, 2**32),
)
def test_times_grow_to_count_over_rate_and_follow_the_seed(
    count: int, rate: float, burstiness: float, seed: int
) -> None:
    times = arrival_times(count, rate, burstiness, np.random.default_rng(seed))
    assert times == arrival_times(count, rate, burstiness, np.random.default_rng(seed))
    assert len(times) == count
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] == pytest.approx(count / rate)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times(3, np.inf, 1.0, np.random.default_rng(0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (1, 0), (np.nan, 1)])
def test_what_is_not_positive_is_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        arrival_times(3, rate, burstiness, np.random.default_rng(0))
