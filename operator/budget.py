"""The accelerators that all services together may have, and what each gets of them.

A service keeps asking for what its autoscaler or its owner has set in `spec.replicas`; its
Deployment gets no more than its part of the budget. So whatever sets those numbers, the sum holds.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pagelet.operator.kube.reflector import Key
from pagelet.operator.kube.resources import Object
from pagelet.operator.services import Services
from pagelet.protocol.autoscaling.budget import Claim, allot


class Budget:
    """Recomputed from all services once some of them have changed, and not for each: a list tells
    of all of them at once."""

    def __init__(self, services: Services, limits: Mapping[str, int]) -> None:
        """`limits` are accelerators by resource name; others have none."""
        self._services = services
        self._limits = limits
        self._allotted: dict[Key, int] = {}
        self._told: dict[Key, int] = {}
        """As of the last `changes`."""
        self._is_stale = True

    def expire(self) -> None:
        """Some service has changed."""
        self._is_stale = True

    def changes(self) -> list[Key]:
        """Services that get another number than when this was last asked."""
        before, self._told = self._told, self._now()
        every = before.keys() | self._told.keys()
        return [key for key in every if before.get(key) != self._told.get(key)]

    def replicas(self, key: Key, wanted: int) -> int:
        """How many of so many replicas a service gets."""
        return min(wanted, self._now().get(key, wanted))

    def _now(self) -> dict[Key, int]:
        if self._limits and self._is_stale:
            self._allotted, self._is_stale = self._allot(), False
        return self._allotted

    def _allot(self) -> dict[Key, int]:
        claims: defaultdict[str, list[Claim]] = defaultdict(list)
        left = dict(self._limits)
        keys = {}
        for key in self._services.all_keys():
            body = self._services.get(key)
            spec: dict[str, Any] = {} if body is None else body["spec"]
            accelerator = spec.get("accelerator")
            if body is None or not accelerator or accelerator["resourceName"] not in left:
                continue
            resource, each = accelerator["resourceName"], int(accelerator.get("count", 1))
            # A canary's number is its owner's, and not scaled.
            left[resource] -= each * int((spec.get("canary") or {}).get("replicas", 0))
            claim = _claim("/".join(key), body, each)
            keys[claim.name] = key
            claims[resource].append(claim)
        return {
            keys[name]: replicas
            for resource, asking in claims.items()
            for name, replicas in allot(max(0, left[resource]), asking).items()
        }


def _claim(name: str, body: Object, each: int) -> Claim:
    spec = body["spec"]
    wanted = int(spec.get("replicas", 1))
    scaling = spec.get("autoscaling")
    return Claim(
        name=name,
        priority=int(scaling.get("priority", 0)) if scaling else 0,
        each=each,
        least=int(scaling.get("minReplicas", 1)) if scaling else wanted,
        wanted=wanted,
    )
