"""What Prometheus' dashboards know of any process: CPU time, memory, open files, collections."""

import time
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

_AGE: Final = 1.0
"""Seconds for which these metrics, which are read from /proc, are served again."""


class ProcessMetrics:
    """The metrics of this process, as prometheus_client names them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._text, self._time = b"", float("-inf")

    def render(self) -> bytes:
        """Prometheus' text format."""
        now = time.monotonic()
        if now - self._time > _AGE:
            self._text = generate_latest(self._registry)
            self._time = now
        return self._text
