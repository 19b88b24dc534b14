"""What scales a service, on a real API server: one at a time, and none of them drops the count."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pagelet.operator.kube.resources import AUTOSCALERS, SCALED_OBJECTS, SERVICES
from pagelet.protocol.router_metrics import DEMAND
from support.broken_services import service as make
from support.cluster import POD_ADDRESS, Api, condition, eventually, running_operator

NAME = "scaled"
GPU = "nvidia.com/gpu"
SCALED_OBJECT_KIND = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{SCALED_OBJECTS.plural}.keda.sh"},
    "spec": {
        "group": "keda.sh",
        "scope": "Namespaced",
        "names": {"kind": "ScaledObject", "plural": SCALED_OBJECTS.plural},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
"""Its name alone; the operator of KEDA is not there."""


ASK_AT = """
from pagelet.operator import autoscaler

client = autoscaler.PodClient
autoscaler.PodClient = lambda _: client({port})
"""
"""Routers' port is always the same, and on this machine somebody else may have it."""


@pytest.fixture
def routers() -> Iterator[socket.socket]:
    """Where all of them are; nobody answers until it is listened on."""
    with socket.socket() as place:
        place.bind((POD_ADDRESS, 0))
        yield place


@pytest.fixture
def operator(
    control_plane: Path, namespace: str, tmp_path: Path, routers: socket.socket
) -> Iterator[None]:
    log = tmp_path / "operator.log"
    options = ("--accelerator-budget", f"{GPU}=4", "--autoscale-seconds", "1")
    prologue = ASK_AT.format(port=routers.getsockname()[1])
    with running_operator(control_plane, namespace, log, *options, prologue=prologue):
        yield
    assert "Traceback" not in log.read_text(), log.read_text()


async def replicas(api: Api, namespace: str, name: str) -> int:
    """Of a service's Deployment."""
    return int((await api.deployment(namespace, f"{name}-agent"))["spec"]["replicas"])


async def scale(api: Api, namespace: str, name: str, count: int) -> None:
    """As an autoscaler does."""
    patch = {"spec": {"replicas": count}}
    await api.merge(SERVICES, namespace, name, patch, subresource="scale")


async def test_whoever_scales_the_count_stays(api: Api, namespace: str, operator: None) -> None:
    await api.install(SCALED_OBJECT_KIND)
    scaling: dict[str, Any] = {"maxReplicas": 5, "engine": "hpa"}
    await api.create(SERVICES, namespace, make(name=NAME, autoscaling=scaling))
    await eventually(lambda: api.deployment(namespace, f"{NAME}-agent"))
    await scale(api, namespace, NAME, 3)
    kinds = {resource.kind for resource in AUTOSCALERS}
    for engine, kind in (
        ("hpa", {"HorizontalPodAutoscaler"}),
        ("keda", {"ScaledObject"}),
        ("builtin", set()),
        ("hpa", {"HorizontalPodAutoscaler"}),
        (None, set()),
    ):
        change = {"autoscaling": None if engine is None else scaling | {"engine": engine}}
        await api.patch_service(namespace, NAME, change)

        async def settled(kind: set[str] = kind) -> bool:
            made = await api.objects(namespace, NAME)
            assert {found for found, _ in made} & kinds == kind
            assert await replicas(api, namespace, NAME) == 3
            status = (await api.service(namespace, NAME))["status"]
            generation = (await api.service(namespace, NAME))["metadata"]["generation"]
            return bool(status["observedGeneration"] == generation)

        await eventually(settled)
        found = condition(await api.service(namespace, NAME), "Valid")
        assert found["status"] == "True", found
    assert (await api.service(namespace, NAME))["spec"]["replicas"] == 3


async def test_the_operator_scales_by_what_routers_tell(
    api: Api, namespace: str, operator: None, routers: socket.socket
) -> None:
    told = {"demand": 0.0}

    async def metrics(request: web.Request) -> web.Response:
        labels = f'service="{NAME}",model="m",pool="stable",target="kv"'
        return web.Response(text=f"{DEMAND}{{{labels}}} {told['demand']}\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, routers).start()
    try:
        scaling = {"minReplicas": 0, "maxReplicas": 3, "scaleDownSeconds": 1}
        await api.create(SERVICES, namespace, make(name=NAME, autoscaling=scaling))

        async def has(count: int) -> bool:
            await api.run_pods(namespace)
            await api.end_pods(namespace)
            assert await replicas(api, namespace, NAME) == count
            return True

        await eventually(lambda: has(0))

        async def is_ready() -> bool:
            await has(0)
            found = condition(await api.service(namespace, NAME), "Ready")
            return bool((found.get("status"), found.get("reason")) == ("True", "ScaledToZero"))

        await eventually(is_ready)
        told["demand"] = 2.5
        await eventually(lambda: has(3))
        told["demand"] = 0.5
        await eventually(lambda: has(1))
    finally:
        await runner.cleanup()
    await asyncio.sleep(5)  # in which nobody tells anything, several times
    assert await has(1)


async def test_services_share_a_budget_by_priority(
    api: Api, namespace: str, operator: None
) -> None:
    accelerator = {"resourceName": GPU, "count": 1}
    for name, priority in (("low", 0), ("high", 5)):
        scaling = {"maxReplicas": 8, "priority": priority}
        body = make(name=name, accelerator=accelerator, autoscaling=scaling)
        await api.create(SERVICES, namespace, body)
    await scale(api, namespace, "low", 4)

    async def are(low: int, high: int) -> bool:
        assert await replicas(api, namespace, "low") == low
        assert await replicas(api, namespace, "high") == high
        return True

    await eventually(lambda: are(3, 1))
    await scale(api, namespace, "high", 3)
    await eventually(lambda: are(1, 3))

    async def is_said() -> bool:
        await api.run_pods(namespace)  # else there is worse to say of them
        await api.end_pods(namespace)
        found = condition(await api.service(namespace, "low"), "Degraded")
        return bool((found.get("status"), found.get("reason")) == ("True", "BudgetUsedUp"))

    await eventually(is_said)
    await scale(api, namespace, "high", 1)
    await eventually(lambda: are(3, 1))
