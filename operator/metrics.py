"""The operator's own metrics."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from pagelet.operator.kube.reflector import Key
from pagelet.protocol.exposition import Family, Histogram, Scalar, render
from pagelet.protocol.inference_service.status import ServiceStatus

_SECONDS: Final = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
_SERVICES: Final = "pagelet_operator_services"
_CONDITIONS: Final = ("Ready", "Degraded", "Valid")


class Metrics:
    """Set and add; `render` writes Prometheus' text format."""

    def __init__(self) -> None:
        self._families: list[Family] = []
        name = "pagelet_operator_reconcile_seconds"
        self.seconds = Histogram(name, [], _SECONDS)
        self._family(name, "histogram", "Time of one reconcile.").series.append(self.seconds)
        self.errors = self._counter(
            "reconcile_errors_total", "Reconciles that will be tried again."
        )
        self.applied = self._counter("applied_objects_total", "Objects that were applied.")
        self.pruned = self._counter("pruned_objects_total", "Objects that were deleted.")
        self.requests = self._counter("api_requests_total", "Requests to the API server.")
        self.queue_length = self._gauge(
            "queue_length", "Services that wait for a reconcile, or have one."
        )
        self.leader = self._gauge("leader", "1 if this process is the one that acts.")
        self.rescales = self._counter("rescales_total", "Times that a service's scale was set.")
        self.unknown_demands = self._gauge(
            "unknown_demands",
            "Services that the operator scales whose routers do not all tell their demand.",
        )
        self._services = self._family(
            _SERVICES, "gauge", "InferenceServices by the status of a condition."
        )
        self._statuses: dict[Key, dict[str, str]] = {}

    def _counter(self, name: str, text: str) -> Scalar:
        return self._scalar(name, "counter", text)

    def _gauge(self, name: str, text: str) -> Scalar:
        return self._scalar(name, "gauge", text)

    def _scalar(self, name: str, kind: str, text: str) -> Scalar:
        name = f"pagelet_operator_{name}"
        made = Scalar(name, [])
        self._family(name, kind, text).series.append(made)
        return made

    def _family(self, name: str, kind: str, text: str) -> Family:
        made = Family(name, kind, text)
        self._families.append(made)
        return made

    @contextlib.contextmanager
    def reconciling(self) -> Iterator[None]:
        """Times the block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.observe(time.perf_counter() - began)

    def saw_status(self, service: Key, status: ServiceStatus) -> None:
        """Counts a service under its conditions."""
        self._statuses[service] = {
            condition.type: condition.status
            for condition in status.conditions
            if condition.type in _CONDITIONS
        }

    def forget(self, service: Key) -> None:
        """Of a service that is gone."""
        self._statuses.pop(service, None)

    def render(self) -> str:
        """All of them."""
        counts = Counter(
            (condition, status)
            for statuses in self._statuses.values()
            for condition, status in statuses.items()
        )
        self._services.series.clear()
        for condition in _CONDITIONS:
            for status in ("True", "False"):
                sample = Scalar(_SERVICES, [("condition", condition), ("status", status)])
                sample.value = counts[condition, status]
                self._services.series.append(sample)
        return render(self._families).decode()
