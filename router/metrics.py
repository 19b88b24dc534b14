"""The router's metrics, `pagelet_router_*`."""

from pagelet.router.record import RequestRecord


class RouterMetrics:
    """All metrics of one worker. Not thread-safe: calls come on the event loop."""

    def on_finished(self, record: RequestRecord) -> None:
        """Counts a request that is over, whatever became of it."""
        raise NotImplementedError

    def on_rejected(self, reason: str) -> None:
        """Counts a request that got an error of the router's own."""
        raise NotImplementedError

    def render(self) -> bytes:
        """Prometheus' text format."""
        raise NotImplementedError
