"""What would be lost with a replica, and how fast it is."""

import contextlib
from collections.abc import AsyncIterator

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


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999", "many"])
@pytest.mark.parametrize("name", ["num_requests_running", "kv_cache_usage_perc"])
def test_what_is_no_figure_is_refused(name: str, value: str) -> None:
    """Whoever owns a service chooses what its pods answer."""
    with pytest.raises(ValueError, match=r"nan|inf|many"):
        read_figures(f"vllm:{name} {value}\n", msgspec.json.encode(DESCRIPTION))


class FakeCluster:
    """Pods of one service, and the patches that they got."""

    def __init__(self, *addresses: str) -> None:
        self.patches: list[tuple[str, str]] = []
        self.found: list[Object] = [
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


@contextlib.asynccontextmanager
async def answering(metrics: web.StreamResponse | str) -> AsyncIterator[int]:
    """A replica's port, at every address of this machine."""
    asked_elsewhere = []

    async def tell(request: web.Request) -> web.StreamResponse:
        return web.Response(text=metrics) if isinstance(metrics, str) else metrics

    async def replica(request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(DESCRIPTION))

    async def elsewhere(request: web.Request) -> web.Response:
        asked_elsewhere.append(request.path)
        return web.Response(text=METRICS)

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", tell),
            web.get("/v1/replica", replica),
            web.get("/elsewhere", elsewhere),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
    assert not asked_elsewhere


async def refreshed(cluster: FakeCluster, port: int) -> list[str]:
    """The pods that were heard."""
    replicas = Replicas(cluster, cluster, port)  # type: ignore[arg-type]
    try:
        await replicas.refresh(("n", "service"))
    finally:
        await replicas.close()
    return [rates.pod for rates in replicas.rates(("n", "service"))]


async def test_those_that_do_not_answer_keep_what_they_had() -> None:
    cluster = FakeCluster("127.0.0.1", "127.0.0.2")
    async with answering(METRICS) as port:
        assert await refreshed(cluster, port) == ["pod-0"]
    [(name, cost)] = cluster.patches
    assert name == "pod-0"
    assert int(cost) >= 7000


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=307, headers={"Location": "/elsewhere"}),
        web.Response(status=204),
        web.Response(body=b"\xff"),
        web.Response(body=b"#" * (17 << 20)),
        "vllm:num_requests_running +Inf\n",
    ],
    ids=["redirect", "nothing", "no text", "endless", "infinite"],
)
async def test_an_odd_answer_is_none(answer: web.StreamResponse | str) -> None:
    cluster = FakeCluster("127.0.0.1")
    async with answering(answer) as port:
        assert await refreshed(cluster, port) == []
    assert cluster.patches == []


async def test_a_pod_with_some_of_our_labels_is_no_replica() -> None:
    cluster = FakeCluster("127.0.0.1", "127.0.0.1")
    cluster.found[0]["metadata"]["labels"] = {"pagelet.dev/service": "service"}
    async with answering(METRICS) as port:
        assert await refreshed(cluster, port) == ["pod-1"]
