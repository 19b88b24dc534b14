"""The operator's own loop, with routers that tell a demand over HTTP."""

import dataclasses
import datetime
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from pagelet.operator.autoscaler import Autoscaler
from pagelet.operator.kube.client import ApiError
from pagelet.operator.kube.resources import Object
from pagelet.operator.metrics import Metrics
from pagelet.protocol.autoscaling.demand import TARGETS
from pagelet.protocol.autoscaling.exposed import combined, read_demand
from pagelet.router.metrics import PoolView, RouterMetrics
from support.broken_services import service as make

KEY = ("n", "service")


def text(**demand: float) -> str:
    metrics = RouterMetrics()
    views = [
        PoolView('odd "model"', "stable", service="service", demand=demand),
        PoolView("m", "canary", service="service", demand={"kv": 50.0}),
        PoolView("m", "stable", service="other", demand={"kv": 60.0}),
    ]
    metrics.set_pools(views)
    return metrics.render().decode()


def test_a_router_tells_the_demand_of_each_service_and_pool() -> None:
    told = read_demand(text(backlog=1.5, kv=0.25), "service", "stable")
    assert told == dict.fromkeys(TARGETS, 0) | {"backlog": 1.5, "kv": 0.25}
    assert read_demand(text(), "nobody", "stable") is None
    assert combined([told, None, {"backlog": 0.25, "kv": 0.5, "concurrency": 0}]) == 1.75
    assert combined([None, None]) is None


@dataclasses.dataclass
class Cluster:
    """Services, pods and API server in one. Routers answer at one port of different addresses."""

    body: Object
    told: dict[str, str | None]
    """Text of `/metrics` by address; None is a router that does not answer."""
    ready: bool = True
    refuses: bool = False
    patches: list[Any] = dataclasses.field(default_factory=list)

    def all_keys(self) -> list[Any]:
        return [KEY]

    def get(self, key: object) -> Object:
        return self.body

    def pods(self, key: object) -> list[Object]:
        ready = "True" if self.ready else "False"
        agent = {"labels": {"pagelet.dev/component": "agent"}, "name": "agent"}
        someones = {"labels": {"pagelet.dev/service": "service"}, "name": "someone's"}
        return [
            {"metadata": agent, "status": {"podIP": "127.0.0.1"}},
            {"metadata": someones, "status": {"podIP": "127.0.0.1"}},
            *(
                {
                    "metadata": {"labels": {"pagelet.dev/component": "router"}, "name": address},
                    "status": {
                        "podIP": address,
                        "conditions": [{"type": "Ready", "status": ready}],
                    },
                }
                for address in self.told
            ),
        ]

    async def merge(
        self, resource: object, namespace: str, name: str, patch: Object, *, subresource: str
    ) -> None:
        assert (namespace, name, subresource) == (*KEY, "scale")
        if self.refuses:
            raise ApiError(403, "Forbidden", "no")
        self.patches.append(patch["spec"]["replicas"])
        self.body["spec"]["replicas"] = patch["spec"]["replicas"]


def cluster(replicas: int, *routers: str | None, **autoscaling: Any) -> Cluster:
    scaling = {"minReplicas": 0, "maxReplicas": 6, "scaleDownSeconds": 0} | autoscaling
    body = make(name="service", replicas=replicas, autoscaling=scaling)
    body["metadata"] |= {"namespace": "n", "uid": "u"}
    return Cluster(body, {f"127.0.0.{number}": told for number, told in enumerate(routers, 1)})


class Loop:
    def __init__(self, port: int, clusters: dict[str, Cluster]) -> None:
        self.metrics = Metrics()
        self._port = port
        self._clusters = clusters
        self.made: list[Autoscaler] = []

    now = datetime.datetime(2026, 3, 4, 12, tzinfo=datetime.UTC)

    async def steps(self, cluster: Cluster, count: int = 1) -> list[int]:
        """The patches that so many looks make."""
        self._clusters["current"] = cluster
        fake: Any = cluster
        scaler = Autoscaler(
            fake, fake, lambda key: fake, self.metrics, port=self._port, now=lambda: self.now
        )
        self.made.append(scaler)
        for _ in range(count):
            await scaler.step()
        return cluster.patches


@pytest.fixture
async def loop() -> AsyncIterator[Loop]:
    clusters: dict[str, Cluster] = {}

    async def metrics(request: web.Request) -> web.Response:
        told = clusters["current"].told[request.host.partition(":")[0]]
        return web.Response(status=500) if told is None else web.Response(text=told)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0)
    await site.start()
    loop = Loop(runner.addresses[0][1], clusters)
    yield loop
    for scaler in loop.made:
        await scaler.close()
    await runner.cleanup()


async def test_the_demands_of_all_routers_add_up(loop: Loop) -> None:
    one, other = text(backlog=1.2, concurrency=0.5), text(backlog=1.5, kv=2.0)
    assert await loop.steps(cluster(1, one, other), 3) == [3]
    assert loop.metrics.rescales.value == 1


async def test_a_request_that_waits_wakes_a_service_from_zero(loop: Loop) -> None:
    assert await loop.steps(cluster(0, text(concurrency=0.01))) == [1]
    assert await loop.steps(cluster(0, text()), 3) == []


async def test_a_service_without_demand_goes_to_its_least(loop: Loop) -> None:
    # The first look takes the count that it finds for what was asked for until then.
    assert await loop.steps(cluster(4, text(), minReplicas=1), 3) == [1]
    assert await loop.steps(cluster(4, text()), 3) == [0]


@pytest.mark.parametrize(
    "routers",
    [(), (None,), (None, None), ("# nothing\n",), (text(kv=math.nan),), (text(kv=math.inf),)],
)
async def test_a_demand_that_is_not_known_holds_the_count(loop: Loop, routers: Any) -> None:
    assert await loop.steps(cluster(4, *routers), 3) == []


async def test_one_router_without_an_answer_lets_the_count_grow_only(loop: Loop) -> None:
    assert await loop.steps(cluster(4, None, text(kv=1.0)), 3) == []
    assert loop.metrics.unknown_demands.value == 1
    assert await loop.steps(cluster(4, None, text(kv=6.0)), 3) == [6]


async def test_one_that_is_not_ready_has_no_demand(loop: Loop) -> None:
    starting = cluster(4, None, text(kv=1.0))
    starting.ready = False
    assert await loop.steps(starting, 2) == [1]


@pytest.mark.parametrize("change", [{"engine": "keda"}, {"engine": "hpa", "minReplicas": 1}])
async def test_services_that_others_scale_are_left_alone(loop: Loop, change: Any) -> None:
    assert await loop.steps(cluster(4, text(), **change), 3) == []


async def test_one_that_goes_away_is_left_alone(loop: Loop) -> None:
    going = cluster(0, text(kv=3.0))
    going.body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert await loop.steps(going) == []


OFFICE = {"start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "timezone": "Asia/Tokyo", "replicas": 3}


async def test_a_schedule_asks_for_replicas_whatever_the_demand_is(loop: Loop) -> None:
    loop.now = datetime.datetime(2026, 3, 4, 8, 59, tzinfo=datetime.UTC)  # 17:59 in Tokyo
    assert await loop.steps(cluster(1, text(), schedule=[OFFICE]), 3) == [3]
    assert await loop.steps(cluster(1, None, schedule=[OFFICE]), 3) == [3]
    assert await loop.steps(cluster(1, text(kv=5.0), schedule=[OFFICE]), 3) == [5]
    loop.now += datetime.timedelta(minutes=2)
    assert await loop.steps(cluster(3, text(kv=1.0), schedule=[OFFICE]), 3) == [1]


async def test_a_schedule_that_cannot_be_read_holds_the_count(loop: Loop) -> None:
    nowhere = OFFICE | {"timezone": "Mars/Base"}
    assert await loop.steps(cluster(1, text(kv=5.0), schedule=[nowhere]), 3) == []


async def test_a_refusal_is_tried_again(loop: Loop) -> None:
    refusing = cluster(1, text(kv=3.0))
    refusing.refuses = True
    assert await loop.steps(refusing, 2) == []
    refusing.refuses = False
    assert await loop.steps(refusing) == [3]
