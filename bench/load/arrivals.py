"""When requests are sent in an open loop: whether or not earlier ones are answered."""

import math

import numpy as np


def arrival_times(
    count: int, rate: float, burstiness: float, rng: np.random.Generator
) -> list[float]:
    """Seconds after the start at which `count` requests come, at `rate` a second on average.

    Intervals are gamma distributed with shape `burstiness`: 1 is a Poisson process, less comes in
    bursts, more is steadier, and infinity is constant. As vLLM's generator does, times are scaled
    so that the last request comes at exactly `count / rate`: the offered load is then the same for
    every seed. Raises `ValueError` for a rate or burstiness that is not positive.
    """
    if not rate > 0 or not burstiness > 0:
        raise ValueError(f"rate {rate} and burstiness {burstiness} must be more than 0")
    if math.isinf(rate):
        return [0.0] * count
    if math.isinf(burstiness):
        intervals = np.full(count, 1 / rate)
    else:
        intervals = rng.gamma(burstiness, 1 / (rate * burstiness), count)
    times = np.cumsum(intervals)
    if count and times[-1] > 0:
        times *= count / rate / times[-1]
    return [float(time) for time in times]
