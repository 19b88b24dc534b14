"""How much of something arrives a second, lately."""

import math
from typing import Final

_LEAST: Final = 1e-3
"""A mean so small is nothing, or an idle service would never be taken for one."""


class ArrivalRate:
    """A mean in which what arrived `mean_age` seconds ago weighs 1/e of what arrives now."""

    def __init__(self, mean_age: float) -> None:
        self._mean_age = mean_age
        self._value = 0.0
        self._at = -math.inf

    def add(self, amount: float, now: float) -> None:
        """So much arrived."""
        self._value = self._decayed(now) + amount / self._mean_age
        self._at = max(self._at, now)

    def per_second(self, now: float) -> float:
        """As of now; 0 once all of it is long ago."""
        value = self._decayed(now)
        return value if value >= _LEAST else 0.0

    def _decayed(self, now: float) -> float:
        return self._value * math.exp(-max(0.0, now - self._at) / self._mean_age)
