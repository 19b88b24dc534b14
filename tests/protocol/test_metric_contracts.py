"""What others rely on in our metrics: all names, types and labels, what known tools read, and the
documentation's table.

After a change that is meant: `.venv/bin/python tests/protocol/test_metric_contracts.py`.
"""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagelet.agent.metrics import Metrics
from pagelet.operator.metrics import Metrics as OperatorMetrics
from pagelet.protocol import router_metrics
from pagelet.protocol.engine import SchedulerStats
from pagelet.router.metrics import PoolView, RouterMetrics
from pagelet.router.record import RequestRecord
from pagelet.router.routing.types import Decision

GOLDEN = Path(__file__).parents[1] / "data/metrics.txt"
PAGE = Path(__file__).parents[2] / "docs/observability.md"
HEADER = "| metric of a router | kind | labels | what it tells |\n| --- | --- | --- | --- |\n"
OF_THE_PROCESS = ("process_", "python_")


def agent_text() -> str:
    metrics = Metrics(
        model_name="tiny",
        max_model_len=1000,
        block_size=16,
        enable_prefix_caching=True,
        max_loras=4,
    )
    stats = SchedulerStats(num_running=2, num_waiting=5, kv_cache_usage=0.25)
    stats.running_adapters, stats.waiting_adapters = ["legal", "sql"], ["sql"]
    metrics.on_stats(0, stats)
    metrics.set_server_state(
        draining=False,
        open_requests=7,
        keys_file_broken=False,
        step_ages=[0.0],
        foreign_gpu_memory=[{"GPU-1": 5}],
    )
    return metrics.render().decode()


def router_text() -> str:
    metrics = RouterMetrics()
    metrics.add_model("m")
    metrics.set_pools([PoolView("m", "p")])
    record = RequestRecord(request_id="r", trace_id="t", method="POST", path="/p", model="m")
    record.status, record.seconds, record.ttft_seconds, record.cached_tokens = 200, 1.0, 0.1, 0
    record.decided(Decision("a", "why", 0, 0.2)).outcome = "completed"
    metrics.on_finished(record)
    return metrics.render().decode()


def described(text: str) -> list[str]:
    """A line a family: its name as samples show it, its type, and its labels."""
    lines = []
    for family in text_string_to_metric_families(text):
        if family.name.startswith(OF_THE_PROCESS):
            continue
        names = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        suffix = "_total" if family.type == "counter" else ""
        lines.append(f"{family.name}{suffix} {family.type} {','.join(names)}".rstrip())
    return sorted(lines)


def all_described() -> str:
    parts = {
        "replica": agent_text(),
        "router": router_text(),
        "operator": OperatorMetrics().render(),
    }
    return "\n".join(
        line for name, text in parts.items() for line in (f"# {name}", *described(text), "")
    )


def test_names_types_and_labels_are_those_of_the_list() -> None:
    assert all_described() == GOLDEN.read_text()


def router_table() -> str:
    """All metrics of a router, for readers of the documentation."""
    every = (
        *router_metrics.REQUEST_METRICS,
        *router_metrics.POOL_METRICS,
        *router_metrics.SERVER_METRICS,
    )
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.help} |"
        for each in every
    ]
    return HEADER + "".join(f"{row}\n" for row in rows)


def with_router_table(page: str) -> str:
    """A page whose table is as it should be."""
    before, _, rest = page.partition(HEADER)
    _, blank, after = rest.partition("\n\n")
    assert blank, f"{PAGE.name} has no table of a router's metrics"
    return before + router_table() + "\n" + after


def test_the_documentation_lists_all_metrics_of_a_router() -> None:
    page = PAGE.read_text()
    assert with_router_table(page) == page
    in_table = {line.split("`")[1] for line in router_table().splitlines() if "`" in line}
    shown = {line.split()[0] for line in described(router_text())}
    assert in_table == shown


READERS = {
    # Gateway API's endpoint picker, by its protocol for model servers.
    "endpoint picker": {
        "vllm:num_requests_waiting": 5,
        "vllm:num_requests_running": 2,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:cache_config_info": 1,
        "vllm:lora_requests_info": None,
    },
    # The routers in Rust that stand in front of vLLM's servers, by old and new name of the cache.
    "vllm-router": {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 5,
        "vllm:gpu_cache_usage_perc": 0.25,
    },
    "smg": {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 5,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:gpu_cache_usage_perc": 0.25,
    },
    # Triggers of KEDA in the documentation of serving stacks.
    "keda": {
        "vllm:num_requests_waiting": 5,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:gpu_cache_usage_perc": 0.25,
        "vllm:num_requests_swapped": 0,
    },
}


@pytest.mark.parametrize("reader", READERS)
def test_a_known_reader_finds_what_it_reads(reader: str) -> None:
    """As such readers do it: the one sample of a gauge of that name, whatever its labels."""
    samples: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(agent_text()):
        if family.type == "gauge":
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample.value)
    for name, value in READERS[reader].items():
        assert len(samples[name]) == 1
        assert value is None or samples[name] == [value]


def test_the_endpoint_picker_finds_its_labels() -> None:
    labels = {
        sample.name: sample.labels
        for family in text_string_to_metric_families(agent_text())
        for sample in family.samples
        if sample.name.endswith("_info")
    }
    assert labels["vllm:cache_config_info"].keys() >= {"block_size", "num_gpu_blocks"}
    assert labels["vllm:lora_requests_info"] == {
        "max_lora": "4",
        "running_lora_adapters": "legal,sql",
        "waiting_lora_adapters": "sql",
    }


if __name__ == "__main__":
    GOLDEN.write_text(all_described())
    PAGE.write_text(with_router_table(PAGE.read_text()))
