"""Scales services of `autoscaling.engine: builtin`: asks their routers what the demand is, and sets
their scale as an autoscaler of the cluster would. Of several operators only the leader does it."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from pagelet.operator.children import Children
from pagelet.operator.kube.client import UNREACHABLE, ApiError, Client, NotFound
from pagelet.operator.kube.reflector import Key
from pagelet.operator.kube.resources import SERVICES, Object
from pagelet.operator.metrics import Metrics
from pagelet.operator.planning.objects import HTTP_PORT
from pagelet.operator.pod_client import NO_ANSWER, PodClient
from pagelet.operator.replicas import is_of, is_ready
from pagelet.operator.services import Services
from pagelet.protocol.autoscaling import schedule
from pagelet.protocol.autoscaling.exposed import Parts, combined, read_demand
from pagelet.protocol.autoscaling.scaler import Scaler
from pagelet.protocol.inference_service.autoscaling import Autoscaling
from pagelet.protocol.inference_service.commands import scaling_bounds

log = logging.getLogger(__name__)


class Autoscaler:
    """Close it in the end."""

    def __init__(
        self,
        client: Client,
        services: Services,
        children_of: Callable[[Key], Children],
        metrics: Metrics,
        *,
        port: int = HTTP_PORT,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`port` is the routers', `now` the time by which schedules go."""
        self._now = now
        self._client = client
        self._services = services
        self._children_of = children_of
        self._metrics = metrics
        self._routers = PodClient(port)
        self._scalers: dict[tuple[Key, str], Scaler] = {}
        """By service and its UID: one of the same name is another one."""

    async def close(self) -> None:
        """Ends connections."""
        await self._routers.close()

    async def run(self, seconds: float) -> None:
        """For ever."""
        while True:
            await self.step()
            await asyncio.sleep(seconds)

    async def step(self) -> None:
        """Looks at every service once."""
        scaled = {}
        for key in self._services.all_keys():
            body = self._services.get(key)
            scaling = None if body is None else _builtin(body)
            if body is not None and scaling is not None:
                scaled[key, str(body["metadata"]["uid"])] = (body, scaling)
        self._scalers = {who: self._scalers.get(who) or Scaler() for who in scaled}
        known = await asyncio.gather(
            *(self._try_to_scale(who, body, scaling) for who, (body, scaling) in scaled.items())
        )
        self._metrics.unknown_demands.value = known.count(False)

    async def _try_to_scale(self, who: tuple[Key, str], body: Object, scaling: Autoscaling) -> bool:
        try:
            return await self._scale(who, body, scaling)
        except Exception:  # one odd service must not hold up the others
            log.exception("%s: cannot be scaled", "/".join(who[0]))
            return False

    async def _scale(self, who: tuple[Key, str], body: Object, scaling: Autoscaling) -> bool:
        """Whether the demand is known."""
        key, _ = who
        demand, complete = await self._demand(key)
        current = int(body["spec"].get("replicas", 1))
        scheduled = schedule.scheduled(scaling.schedule, self._now())
        wanted = self._scalers[who].decide(
            scaling_bounds(scaling),
            current,
            demand,
            time.monotonic(),
            is_complete=complete,
            scheduled=scheduled,
        )
        if wanted != current:
            told = "unknown" if demand is None else f"{demand:.2f}"
            told += f", schedule: {scheduled}" if scheduled else ""
            log.info("%s: %d to %d replicas (demand: %s)", "/".join(key), current, wanted, told)
            try:
                patch = {"spec": {"replicas": wanted}}
                await self._client.merge(SERVICES, *key, patch, subresource="scale")
                self._metrics.rescales.value += 1
            except NotFound:
                pass  # deleted meanwhile
            except (ApiError, *UNREACHABLE) as error:
                log.warning("%s: cannot be scaled: %s", "/".join(key), error)
        return demand is not None and complete

    async def _demand(self, key: Key) -> tuple[float | None, bool]:
        """In replicas, and whether all routers have told theirs."""
        routers = [
            pod
            for pod in self._children_of(key).pods(key)
            if is_of(pod, "router") and pod["status"].get("podIP")
        ]
        told = await asyncio.gather(*(self._ask(pod, key[1]) for pod in routers))
        complete = all(
            parts is not None or not is_ready(pod) for pod, parts in zip(routers, told, strict=True)
        )
        return combined(told), complete

    async def _ask(self, pod: Object, service: str) -> Parts | None:
        try:
            metrics = await self._routers.get(pod, "/metrics")
            return read_demand(metrics.decode(), service, "stable")
        except NO_ANSWER as error:
            log.debug("router %s does not answer: %r", pod["metadata"]["name"], error)
            return None


def _builtin(body: Object) -> Autoscaling | None:
    """How the operator is to scale a service; None if it is not."""
    found = body["spec"].get("autoscaling")
    if not found or "deletionTimestamp" in body["metadata"]:
        return None
    try:
        scaling = msgspec.convert(found, Autoscaling)
    except msgspec.ValidationError:
        return None  # the reconciler says so
    now = datetime.now(UTC)
    if any(True for entry in scaling.schedule for _ in schedule.problems(entry, now)):
        return None
    return scaling if scaling.engine == "builtin" else None
