"""What replicas say of themselves: their speed, which goes to the status, and what would be lost
with each, by which the cluster chooses whom to end when a service is scaled down."""

import asyncio
import dataclasses
import logging
import math
import re
from typing import Any, Final

import msgspec

from pagelet.operator.children import COST_ANNOTATION, Children
from pagelet.operator.kube.client import UNREACHABLE, ApiError, Client
from pagelet.operator.kube.reflector import Key
from pagelet.operator.kube.resources import PODS, Object
from pagelet.operator.planning.objects import COMPONENT_LABEL, HTTP_PORT, POD_INDEX_LABEL, Component
from pagelet.operator.pod_client import NO_ANSWER, PodClient
from pagelet.protocol.inference_service.status import ReplicaRates
from pagelet.protocol.replica import ReplicaDescription

_DIGITS: Final = 2
"""Of measured figures: else the status would change with every request."""
_REQUEST_COST: Final = 1000
"""A request that has to move to another replica, against the whole of a cache: its stream pauses,
while a prefix that is gone is computed once more."""
_MOST_COST: Final = 2**31 - 1
_SAMPLE: Final = re.compile(
    r"^vllm:(?P<name>num_requests_running|num_requests_waiting|kv_cache_usage_perc)"
    r"(\{[^}]*\})? (?P<value>\S+)$",
    re.MULTILINE,
)

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Figures:
    """One replica's."""

    requests: int
    """In flight."""
    cache_used: float
    """Share of the KV cache, 0 to 1."""
    description: ReplicaDescription

    @property
    def deletion_cost(self) -> int:
        """What would be lost with the replica."""
        cost = self.requests * _REQUEST_COST + round(self.cache_used * _REQUEST_COST)
        return min(_rounded(cost), _MOST_COST)

    def rates(self, pod: str) -> ReplicaRates:
        """For the status."""
        return ReplicaRates(
            pod=pod,
            prefill_tokens_per_second=_rough(self.description.prefill_tokens_per_second),
            decode_step_seconds=_rough(self.description.decode_step_seconds),
        )


class Replicas:
    """Asks the replicas of all services, every now and then and before one is scaled down."""

    def __init__(self, client: Client, children: Children, port: int = HTTP_PORT) -> None:
        """`port` is that of replicas."""
        self._client = client
        self._children = children
        self._rates: dict[Key, list[ReplicaRates]] = {}
        self._replicas = PodClient(port)

    async def close(self) -> None:
        """Ends connections."""
        await self._replicas.close()

    def rates(self, service: Key) -> list[ReplicaRates]:
        """As last heard."""
        return self._rates.get(service, [])

    async def keep_asking(self, seconds: float) -> None:
        """For ever."""
        while True:
            services = self._children.services()
            self._rates = {key: rates for key, rates in self._rates.items() if key in services}
            await asyncio.gather(*(self._try_to_refresh(service) for service in services))
            await asyncio.sleep(seconds)

    async def _try_to_refresh(self, service: Key) -> None:
        try:
            await self.refresh(service)
        except Exception:  # one odd service must not hold up the others
            log.exception("%s: its replicas cannot be asked", "/".join(service))

    async def refresh(self, service: Key) -> None:
        """Asks a service's replicas now. Those that do not answer keep what they had."""
        pods = [pod for pod in self._children.pods(service) if _is_serving_agent(pod)]
        figures = await asyncio.gather(*(self._ask(pod) for pod in pods))
        heard = [(pod, found) for pod, found in zip(pods, figures, strict=True) if found]
        self._rates[service] = sorted(
            (found.rates(pod["metadata"]["name"]) for pod, found in heard),
            key=lambda rates: rates.pod,
        )
        await asyncio.gather(*(self._note_cost(pod, found.deletion_cost) for pod, found in heard))

    async def _ask(self, pod: Object) -> Figures | None:
        try:
            metrics = await self._replicas.get(pod, "/metrics")
            replica = await self._replicas.get(pod, "/v1/replica")
            return read_figures(metrics.decode(), replica)
        except NO_ANSWER as error:
            log.debug("replica %s does not answer: %r", pod["metadata"]["name"], error)
            return None

    async def _note_cost(self, pod: Object, cost: int) -> None:
        metadata = pod["metadata"]
        if metadata["annotations"].get(COST_ANNOTATION, "0") == str(cost):
            return
        patch: dict[str, Any] = {"metadata": {"annotations": {COST_ANNOTATION: str(cost)}}}
        try:
            await self._client.merge(PODS, metadata["namespace"], metadata["name"], patch)
        except (ApiError, *UNREACHABLE) as error:
            log.debug("cannot note the cost of %s: %s", metadata["name"], error)


def read_figures(metrics: str, replica: bytes) -> Figures:
    """From a replica's `/metrics` and `/v1/replica`. Raises ValueError (msgspec's errors are
    some)."""
    requests, used = 0.0, []
    for sample in _SAMPLE.finditer(metrics):
        value = float(sample["value"])
        if not math.isfinite(value):
            raise ValueError(f"{sample['name']} is {value}")
        if sample["name"] == "kv_cache_usage_perc":
            used.append(value)
        else:
            requests += value
    description = msgspec.json.decode(replica, type=ReplicaDescription)
    return Figures(int(requests), sum(used) / len(used) if used else 0.0, description)


def is_ready(pod: Object) -> bool:
    """Whether it takes requests."""
    conditions = pod["status"].get("conditions") or ()
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def is_of(pod: Object, component: Component) -> bool:
    """Whether it is one of a component. Anyone may give a pod some of our labels, and not all."""
    return bool(pod["metadata"]["labels"].get(COMPONENT_LABEL) == component)


def is_head(pod: Object) -> bool:
    """Whether it serves its replica: of several nodes, one does."""
    return bool(pod["metadata"]["labels"].get(POD_INDEX_LABEL, "0") == "0")


def _is_serving_agent(pod: Object) -> bool:
    return (
        is_ready(pod)
        and bool(pod["status"].get("podIP"))
        and is_of(pod, "agent")
        and is_head(pod)
        and "deletionTimestamp" not in pod["metadata"]
    )


def _rounded(cost: int) -> int:
    """Up to an eighth of the next power of two, so that a cost that hardly changes is written
    once."""
    if cost <= 0:
        return 0
    step = 1 << max(0, cost.bit_length() - 4)
    return math.ceil(cost / step) * step


def _rough(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")
