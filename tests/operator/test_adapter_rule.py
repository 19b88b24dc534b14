"""The rule for prometheus-adapter in the docs, answered by its own code and a real Prometheus."""

import contextlib
import http.server
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.programs import ADAPTER_RULE
from pagelet.operator.plan import plan
from pagelet.operator.planning.context import Context
from pagelet.protocol.exposition import CONTENT_TYPE
from pagelet.protocol.router_metrics import DEMAND
from pagelet.router.metrics import PoolView, RouterMetrics
from support.plans import make_service
from support.processes import wait_for
from support.prometheus import NAMESPACE, Prometheus, program_path, prometheus

DOCS = Path(__file__).parents[2] / "docs/autoscaling.md"


@contextlib.contextmanager
def router_with(demand: dict[str, float]) -> Iterator[int]:
    """The port of a server with a router's metrics: of two services."""
    metrics = RouterMetrics()
    metrics.set_pools(
        [
            PoolView("m", "stable", service="service", demand=demand),  # type: ignore[arg-type]
            PoolView("m", "stable", service="other", demand={"kv": 60.0}),
        ]
    )

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(metrics.render())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Prometheus]:
    """Two routers of a service, and a Prometheus that scrapes them."""
    program_path(ADAPTER_RULE)
    with (
        router_with({"backlog": 1.25, "kv": 0.5}) as one,
        router_with({"backlog": 2.0}) as other,
        prometheus(tmp_path, {"routers": [f"127.0.0.1:{one}", f"127.0.0.1:{other}"]}) as made,
    ):
        wait_for(lambda: len(made.query(f'{DEMAND}{{service="service",target="kv"}}')) == 2)
        yield made


def test_an_hpa_is_told_the_sum_over_routers_by_target(
    watching: Prometheus, tmp_path: Path
) -> None:
    (rule,) = re.findall(r"```yaml\n(externalRules:.*?)```", DOCS.read_text(), re.DOTALL)
    config = tmp_path / "config.yaml"
    config.write_text(rule)
    service = make_service(autoscaling={"engine": "hpa", "maxReplicas": 5})
    (hpa,) = (
        made
        for made in plan(service, Context(agent_image="a:1", router_image="r:1"))
        if made["kind"] == "HorizontalPodAutoscaler"
    )
    asked = {}
    for metric in (each["external"]["metric"] for each in hpa["spec"]["metrics"]):
        labels = metric["selector"]["matchLabels"]
        selector = ",".join(f"{label}={value}" for label, value in labels.items())
        asked[labels["target"]] = [metric["name"], selector]

    def told(target: str) -> float:
        ended = subprocess.run(
            [program_path(ADAPTER_RULE), config, watching.url, NAMESPACE, *asked[target]],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        listed, value = ended.stdout.splitlines()
        assert listed == f"metric {DEMAND}"
        return float(value.removeprefix("value "))

    expected = {"backlog": 3.25, "ttft": 0, "tpot": 0, "concurrency": 0, "kv": 0.5}
    assert asked.keys() == expected.keys()
    # A scrape that comes late leaves a hole in the sum for a second.
    wait_for(lambda: {target: told(target) for target in asked} == expected)
