"""Grafana's dashboards, and those that are shipped for vLLM: each query finds what it asks for."""

import concurrent.futures
import contextlib
import http.server
import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from pagelet.operator.metrics import Metrics as OperatorMetrics
from pagelet.operator.planning.autoscaling import demand_query
from pagelet.protocol.exposition import CONTENT_TYPE
from pagelet.protocol.inference_service.service import InferenceService
from pagelet.protocol.router_metrics import DEMAND
from support.exported import exported_samples, names_in
from support.fake_gpu import pretend_foreign_memory
from support.fleet import MODEL, in_order, replica, router, running
from support.processes import wait_for
from support.prometheus import NAMESPACE, Prometheus, prometheus

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "charts/pagelet/dashboards"
FILES = sorted(FOLDER.glob("*.json"))
RATE_SECONDS = 10

GAUGES = (
    *("num_requests_running", "num_requests_waiting", "num_requests_swapped"),
    *("kv_cache_usage_perc", "gpu_cache_usage_perc", "cpu_cache_usage_perc"),
    *("gpu_prefix_cache_hit_rate", "cpu_prefix_cache_hit_rate", "cache_config_info"),
)
COUNTERS = (
    *("prompt_tokens_total", "generation_tokens_total", "request_success_total"),
    *("prefix_cache_hits_total", "prefix_cache_queries_total", "num_preemptions_total"),
    *("gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total"),
)
HISTOGRAMS = (
    *("time_to_first_token_seconds", "time_per_output_token_seconds"),
    *("inter_token_latency_seconds", "request_time_per_output_token_seconds"),
    *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
    *("request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens"),
    *("request_generation_tokens", "iteration_tokens_total", "request_params_max_tokens"),
)
"""What dashboards, scalers and routers that are shipped for vLLM ask for, by old names and new."""


def queries_for_vllm() -> Iterator[str]:
    """In the forms in which they do."""
    chosen = f'model_name="{MODEL}"'
    for name in GAUGES:
        yield f"vllm:{name}{{{chosen}}}"
        yield f"sum by (model_name) (vllm:{name}{{{chosen}}})"
    for name in COUNTERS:
        yield f"rate(vllm:{name}{{{chosen}}}[{RATE_SECONDS}s])"
        yield f"sum(increase(vllm:{name}{{{chosen}}}[{RATE_SECONDS}s]))"
    yield (
        f"sum by (finished_reason) "
        f"(increase(vllm:request_success_total{{{chosen}}}[{RATE_SECONDS}s]))"
    )
    for name in HISTOGRAMS:
        buckets = f"rate(vllm:{name}_bucket{{{chosen}}}[{RATE_SECONDS}s])"
        yield f"histogram_quantile(0.95, sum by (le) ({buckets}))"
        yield f"sum by (le) ({buckets})"
        yield (
            f"rate(vllm:{name}_sum{{{chosen}}}[{RATE_SECONDS}s]) / "
            f"rate(vllm:{name}_count{{{chosen}}}[{RATE_SECONDS}s])"
        )


def queries_of(file: Path) -> list[str]:
    """Of all panels, with Grafana's variables filled in, as when all is chosen."""
    dashboard = json.loads(file.read_text())
    found = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    for variable in dashboard["templating"]["list"]:
        found = [query.replace(f'${variable["name"]}"', '.*"') for query in found]
    return [query.replace("$__rate_interval", f"{RATE_SECONDS}s") for query in found]


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


class _OperatorHandler(http.server.BaseHTTPRequestHandler):
    metrics = OperatorMetrics()

    def do_GET(self) -> None:
        with self.metrics.reconciling():
            body = self.metrics.render().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def operator_metrics() -> Iterator[int]:
    """The port of a server with an operator's metrics."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _OperatorHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A router, two replicas and an operator under load, and the Prometheus that watches them."""
    folder = tmp_path_factory.mktemp("dashboards")
    with contextlib.ExitStack() as stack:
        backends = [replica(folder / f"replica-{index}.log") for index in range(2)]
        for backend in backends:
            stack.callback(backend.close)
        pools = [{"replicas": [backend.url for backend in backends]}]
        config = {"models": [{"name": MODEL, "pools": pools}]}
        gate = router(folder / "router.log", config)
        operator_port = stack.enter_context(operator_metrics())
        jobs = {
            "replicas": [f"127.0.0.1:{backend.port}" for backend in backends],
            "router": [f"127.0.0.1:{gate.port}"],
            "operator": [f"127.0.0.1:{operator_port}"],
        }
        rules = [ROOT / "charts/pagelet/files/alerts.yaml"]
        watching = stack.enter_context(prometheus(folder, jobs, rules))
        in_order(backends)
        pretend_foreign_memory(backends[0], 0)
        stack.enter_context(running(gate))
        stop = threading.Event()
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(4))
        stack.callback(stop.set)
        loads = [pool.submit(_load, gate.url, stop) for _ in range(4)]
        counted = f"increase(vllm:request_success_total[{RATE_SECONDS}s]) > 0"
        wait_for(lambda: len(watching.query(counted)) == 2)
        yield watching
        stop.set()
        for load in loads:
            assert load.result() > 0


def _load(url: str, stop: threading.Event) -> int:
    """Questions with some beginnings in common, so that each replica has its own; how many were
    answered."""
    answered = 0
    with httpx.Client(timeout=60) as client:
        while not stop.is_set():
            prompt = f"Topic {answered % 16}. " + "Be brief. " * 30 + f"Question {answered}."
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 8}
            client.post(f"{url}/v1/completions", json=body).raise_for_status()
            answered += 1
    return answered


def assert_all_return_series(scraped: Prometheus, queries: Iterable[str]) -> None:
    """Each some time: a rate needs two samples, and a scrape that comes late leaves a hole."""
    missing = list(queries)
    assert missing

    def none_is_missing() -> bool:
        missing[:] = [query for query in missing if not scraped.query(query)]
        return not missing

    try:
        wait_for(none_is_missing)
    except AssertionError:
        assert missing == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_panel_returns_a_series_under_load(file: Path, scraped: Prometheus) -> None:
    assert_all_return_series(scraped, queries_of(file))


def choices() -> Iterator[str]:
    """What fills the dashboards' variables."""
    for file in FILES:
        for variable in json.loads(file.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = variable["definition"][len("label_values(") : -1].split(", ")
                yield f'{metric}{{{label}!=""}}'


def test_every_choice_of_a_dashboard_has_values(scraped: Prometheus) -> None:
    assert_all_return_series(scraped, choices())


def test_what_is_shipped_for_vllm_returns_series(scraped: Prometheus) -> None:
    assert_all_return_series(scraped, queries_for_vllm())


def test_what_keda_asks_is_the_demand_that_the_router_tells(scraped: Prometheus) -> None:
    service = SimpleNamespace(namespace=NAMESPACE, name=MODEL)
    pools = f'{{service="{MODEL}",pool="default"}}'
    wait_for(lambda: scraped.query(f"{DEMAND}{pools} > 0"))
    asked = demand_query(cast("InferenceService", service)).replace('"stable"', '"default"')
    (answer,) = scraped.query(f"max_over_time(({asked})[5s:1s])")
    assert 0 < float(answer["value"][1]) < 2  # four streams at a time


def test_no_alert_is_about_to_fire_while_all_is_well(scraped: Prometheus) -> None:
    # This operator only shows its metrics; and on a busy machine all may be less well for a moment.
    wait_for(lambda: scraped.firing() <= {"PageletOperatorDown"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_is_as_grafana_imports_it(file: Path) -> None:
    dashboard = json.loads(file.read_text())
    assert dashboard["uid"] == f"pagelet-{file.stem}"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    places = [
        (x, y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places), "panels lie on each other"
    assert max(x for x, _ in places) < 24
    chosen = {variable["name"] for variable in dashboard["templating"]["list"]}
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert names_in(target["expr"]) <= exported_samples(), panel["title"]
            variables = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert variables <= chosen, panel["title"]


def test_the_files_are_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    try:
        import dashboards

        written = {f"{each.name}.json": dashboards.render(each) for each in dashboards.DASHBOARDS}
    finally:
        for name in ("dashboards", "grafana"):
            sys.modules.pop(name, None)
    assert {file.name: file.read_text() for file in FILES} == written, (
        "run .venv/bin/python scripts/dashboards.py"
    )
