"""The demand of a service as its routers' `/metrics` tell it."""

import collections
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

from pagelet.protocol.router_metrics import DEMAND

_SAMPLE: Final = re.compile(
    rf"^{DEMAND}\{{"
    r'service="(?P<service>(?:[^"\\]|\\.)*)",model="(?:[^"\\]|\\.)*",pool="(?P<pool>[^"]*)",'
    r'target="(?P<target>[^"]*)"\} (?P<value>\S+)$',
    re.MULTILINE,
)

Parts = dict[str, float]
"""Replicas that each target asks for."""


def read_demand(metrics: str, service: str, pool: str) -> Parts | None:
    """What one router says of a pool; None if it says nothing, as where it does not know it. Raises
    ValueError for what is no number of replicas."""
    parts = {
        sample["target"]: float(sample["value"])
        for sample in _SAMPLE.finditer(metrics)
        if (sample["service"], sample["pool"]) == (service, pool)
    }
    if not all(map(math.isfinite, parts.values())):
        raise ValueError(f"the demand of {service} is no number of replicas: {parts}")
    return parts or None


def combined(routers: Iterable[Parts | None]) -> float | None:
    """The demand in replicas by what some routers said; None if none of them did."""
    known: Sequence[Parts] = [parts for parts in routers if parts is not None]
    if not known:
        return None
    sums: Parts = collections.defaultdict(float)
    for parts in known:
        for target, replicas in parts.items():
            sums[target] += replicas
    return max(sums.values())
