"""What would be lost with a replica, and how fast it is."""

import asyncio

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from pagelet.operator.kube.resources import Object
from pagelet.operator.replicas import Figures, Replicas, read_figures
from pagelet.protocol.replica import ReplicaDescription

METRICS = """\
# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{model_name="m",engine="0"} 2.0
vllm:num_requests_running{model_name="m",engine="1"} 1
vllm:num_requests_waiting{model_name="m",engine="0"} 4
vllm:num_requests_waiting_by_reason{reason="capacity"} 9
vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5
vllm:kv_cache_usage_perc{model_name="m",engine="1"} 0.25
"""
DESCRIPTION = ReplicaDescription(
    incarnation="a",
    version="1",
    served_model_names=["m"],
    max_model_len=1,
    block_size=16,
    num_kv_blocks=1,
    max_num_seqs=1,
    enable_prefix_caching=True,
    data_parallel_size=2,
    prefill_tokens_per_second=1234.5,
)


def test_figures_are_read_from_metrics_and_description() -> None:
    figures = read_figures(METRICS, msgspec.json.encode(DESCRIPTION))
    assert (figures.requests, figures.cache_used) == (7, 0.375)
    rates = figures.rates("pod-1")
    assert (rates.pod, rates.prefill_tokens_per_second) == ("pod-1", 1200)
    assert rates.decode_step_seconds is None


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0, 1), st.floats(0, 1))
def test_more_requests_or_a_fuller_cache_never_cost_less(
    few: int, more: int, emptier: float, fuller: float
) -> None:
    few, more = sorted((few, more))
    emptier, fuller = sorted((emptier, fuller))
    low = Figures(few, emptier, DESCRIPTION).deletion_cost
    high = Figures(more, fuller, DESCRIPTION).deletion_cost
    assert 0 <= low <= high <= 2**31 - 1


def test_a_stream_outweighs_a_cache_and_an_idle_replica_costs_nothing() -> None:
    assert Figures(0, 0, DESCRIPTION).deletion_cost == 0
    assert Figures(0, 1, DESCRIPTION).deletion_cost > Figures(0, 0.2, DESCRIPTION).deletion_cost
    assert Figures(2, 0, DESCRIPTION).deletion_cost > Figures(0, 1, DESCRIPTION).deletion_cost


class FakeCluster:
    """Pods of one service, and the patches that they got."""

    def __init__(self, *addresses: str) -> None:
        self.patches: list[tuple[str, str]] = []
        self.found = [
            {
                "metadata": {
                    "name": f"pod-{number}",
                    "namespace": "n",
                    "labels": {"pagelet.dev/component": "agent"},
                    "annotations": {},
                },
                "status": {
                    "podIP": address,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            for number, address in enumerate(addresses)
        ]

    def pods(self, service: object) -> list[Object]:
        return self.found

    async def merge(self, resource: object, namespace: str, name: str, patch: Object) -> None:
        [cost] = patch["metadata"]["annotations"].values()
        self.patches.append((name, cost))


async def test_those_that_do_not_answer_keep_what_they_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    async def replica(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(DESCRIPTION))

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/v1/replica", replica)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    monkeypatch.setattr("pagelet.operator.replicas.HTTP_PORT", runner.addresses[0][1])
    cluster = FakeCluster("127.0.0.1", "127.0.0.2")
    replicas = Replicas(cluster, cluster)  # type: ignore[arg-type]
    try:
        await replicas.refresh(("n", "service"))
    finally:
        await replicas.close()
        await runner.cleanup()
        await asyncio.sleep(0)
    assert [rates.pod for rates in replicas.rates(("n", "service"))] == ["pod-0"]
    [(name, cost)] = cluster.patches
    assert name == "pod-0"
    assert int(cost) >= 7000
