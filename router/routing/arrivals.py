"""How much of something arrives a second, lately, and in which sizes."""

import math
from typing import Final

from pagelet.protocol.autoscaling.objective import Prompts

_LEAST: Final = 1e-3
"""Of a mean: what came counts, however little, or a service in use would be taken for idle."""
_SIZES: Final = 40
"""Classes of prompts: from a millisecond to a quarter of an hour."""


class ArrivalRate:
    """A mean in which what arrived `mean_age` seconds ago weighs 1/e of what arrives now. It ends
    when nothing has arrived for so long, or an idle service would not be taken for one."""

    def __init__(self, mean_age: float) -> None:
        self._mean_age = mean_age
        self._value = 0.0
        self._at = -math.inf

    def add(self, amount: float, now: float) -> None:
        """So much arrived."""
        self._value = self._decayed(now) + amount / self._mean_age
        self._at = max(self._at, now)

    def per_second(self, now: float) -> float:
        """As of now."""
        return max(self._decayed(now), _LEAST) if now - self._at <= self._mean_age else 0.0

    def _decayed(self, now: float) -> float:
        return self._value * math.exp(-max(0.0, now - self._at) / self._mean_age)


class ArrivalSizes:
    """The load that prompts make, and how long they are, both as such means."""

    def __init__(self, mean_age: float) -> None:
        self._mean_age = mean_age
        self._load = ArrivalRate(mean_age)
        self._weights = [0.0] * _SIZES
        self._at = -math.inf
        """When they were last looked at."""

    def add(self, seconds: float, now: float) -> None:
        """A prompt came that keeps a replica busy for so long."""
        self._load.add(seconds, now)
        aged = math.exp(-max(0.0, now - self._at) / self._mean_age)
        self._weights = [weight * aged for weight in self._weights]
        self._weights[_class_of(seconds)] += 1.0
        self._at = max(self._at, now)

    def prompts(self, start_seconds: float, now: float) -> Prompts:
        """As of now; `start_seconds` is what a first token takes besides."""
        sizes = [(_size_of(at), weight) for at, weight in enumerate(self._weights) if weight]
        load = self._load.per_second(now)
        return Prompts(load=load, start_seconds=start_seconds, sizes=sizes if load else ())


def _class_of(seconds: float) -> int:
    """By powers of the root of two, rounded up: a prompt is taken to be no shorter than it is."""
    power = math.ceil(2 * math.log2(max(seconds, _LEAST) / _LEAST))
    return min(power, _SIZES - 1)


def _size_of(number: int) -> float:
    return float(_LEAST * 2 ** (number / 2))
