"""Scales the services of `spec.autoscaling`, by what the router says of their demand, with the
operator's own formula."""

import asyncio
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pagelet.local import probe
from pagelet.local.pools import Pools
from pagelet.local.wanted import PoolSpec
from pagelet.protocol.autoscaling import schedule
from pagelet.protocol.autoscaling.exposed import combined, read_demand
from pagelet.protocol.autoscaling.scaler import Scaler
from pagelet.protocol.inference_service.commands import scaling_bounds

_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class Autoscaler:
    """Watches one router."""

    def __init__(self, pools: Pools, port: int) -> None:
        """`port` is the router's."""
        self._pools = pools
        self._port = port
        self._scalers: dict[str, Scaler] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self._look()
            except Exception:  # one odd answer must not be the last
                log.exception("cannot scale")
            await asyncio.sleep(_SECONDS)

    async def _look(self) -> None:
        specs = self._pools.scaled
        self._scalers = {name: self._scalers.get(name) or Scaler() for name in specs}
        if specs:
            answer = await probe.get(self._port, "/metrics")
            told = None if answer is None or answer[0] != 200 else answer[1]
            self._decide(specs, told, time.monotonic())

    def _decide(self, specs: Mapping[str, PoolSpec], metrics: str | None, now: float) -> None:
        for name, spec in specs.items():
            parts = None
            if metrics is not None:
                parts = read_demand(metrics, spec.service.name, spec.revision.name)
            demand, current = combined([parts]), self._pools.wanted_replicas(name)
            scaling = spec.service.spec.autoscaling
            assert scaling is not None
            scheduled = schedule.scheduled(scaling.schedule, datetime.now(UTC))
            wanted = self._scalers[name].decide(
                scaling_bounds(scaling), current, demand, now, scheduled=scheduled
            )
            if wanted != current:
                shown = "unknown" if demand is None else f"{demand:.2g}"
                log.info("%s: %d to %d replicas (demand: %s)", name, current, wanted, shown)
                self._pools.autoscale(name, wanted)
