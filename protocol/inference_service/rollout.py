"""`spec.rollout`: how a change reaches the replicas, and how many it may touch at once."""

import math
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from pagelet.protocol.inference_service.parts import IntOrPercent, Part


class Rollout(Part, kw_only=True):
    """How a change reaches the replicas."""

    max_surge: IntOrPercent = 1
    """Replicas, or their share, that may be there beyond `replicas`; 0 where no accelerators are
    to spare."""
    max_unavailable: IntOrPercent = 0
    """Replicas, or their share, that may be missing."""
    drain_seconds: Annotated[int, Meta(ge=0, le=86400)] = 600
    """Most seconds that running requests get to finish before their pod ends."""
    startup_seconds: Annotated[int, Meta(ge=10, le=86400)] = 1800
    """Most seconds for loading the model, once it is downloaded, before the pod is restarted."""


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
