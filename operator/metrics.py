"""The operator's own metrics."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from pagelet.operator.kube.reflector import Key
from pagelet.protocol.exposition import Histogram, Scalar
from pagelet.protocol.inference_service.status import ServiceStatus

_SECONDS: Final = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
_HELP: Final = {
    "pagelet_operator_reconcile_seconds": ("histogram", "Time of one reconcile."),
    "pagelet_operator_reconcile_errors_total": ("counter", "Reconciles that will be tried again."),
    "pagelet_operator_applied_objects_total": ("counter", "Objects that were applied."),
    "pagelet_operator_pruned_objects_total": ("counter", "Objects that were deleted."),
    "pagelet_operator_api_requests_total": ("counter", "Requests to the API server."),
    "pagelet_operator_queue_length": ("gauge", "Services that wait for a reconcile, or have one."),
    "pagelet_operator_leader": ("gauge", "1 if this process is the one that acts."),
    "pagelet_operator_rescales_total": ("counter", "Times that a service's scale was set."),
    "pagelet_operator_unknown_demands": (
        "gauge",
        "Services that the operator scales whose routers do not all tell their demand.",
    ),
    "pagelet_operator_services": ("gauge", "InferenceServices by the status of a condition."),
}
_CONDITIONS: Final = ("Ready", "Degraded", "Valid")


class Metrics:
    """Set and add; `render` writes Prometheus' text format."""

    def __init__(self) -> None:
        self.seconds = Histogram("pagelet_operator_reconcile_seconds", [], _SECONDS)
        self.errors = Scalar("pagelet_operator_reconcile_errors_total", [])
        self.applied = Scalar("pagelet_operator_applied_objects_total", [])
        self.pruned = Scalar("pagelet_operator_pruned_objects_total", [])
        self.requests = Scalar("pagelet_operator_api_requests_total", [])
        self.queue_length = Scalar("pagelet_operator_queue_length", [])
        self.leader = Scalar("pagelet_operator_leader", [])
        self.rescales = Scalar("pagelet_operator_rescales_total", [])
        self.unknown_demands = Scalar("pagelet_operator_unknown_demands", [])
        self._statuses: dict[Key, dict[str, str]] = {}

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
        lines: list[str] = []
        series: list[Scalar | Histogram] = [
            self.seconds, self.errors, self.applied, self.pruned, self.requests,
            self.queue_length, self.leader, self.rescales, self.unknown_demands,
        ]  # fmt: skip
        for name, measured in zip(_HELP, series, strict=False):
            lines += [*_head(name), *measured.lines()]
        lines += _head("pagelet_operator_services")
        counts = Counter(
            (condition, status)
            for statuses in self._statuses.values()
            for condition, status in statuses.items()
        )
        for condition in _CONDITIONS:
            for status in ("True", "False"):
                labels = [("condition", condition), ("status", status)]
                sample = Scalar("pagelet_operator_services", labels)
                sample.value = counts[condition, status]
                lines += sample.lines()
        return "\n".join(lines) + "\n"


def _head(name: str) -> list[str]:
    kind, text = _HELP[name]
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
