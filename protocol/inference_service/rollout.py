"""How many replicas a change may touch at once."""

import math
from collections.abc import Callable

from pagelet.protocol.inference_service.types import IntOrPercent, Rollout


def rollout_bounds(rollout: Rollout, replicas: int) -> tuple[int, int]:
    """How many may be there beyond `replicas` while they are replaced, and how many may be missing
    meanwhile: 1 if neither may be, as both shares of a small number can round to 0. As of a
    Deployment."""
    surge = _resolve(rollout.max_surge, replicas, math.ceil)
    unavailable = _resolve(rollout.max_unavailable, replicas, math.floor)
    return surge, unavailable or int(surge == 0)


def _resolve(count: IntOrPercent, of: int, rounding: Callable[[float], int]) -> int:
    if isinstance(count, int):
        return count
    if count.endswith("%"):
        return rounding(of * int(count.removesuffix("%")) / 100)
    return int(count)
