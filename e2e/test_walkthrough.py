"""The README's walk-through: from an empty cluster to a streamed answer of a real model."""

import socket
import time
from pathlib import Path

import openai
import pytest
from client.question import ask_from_a_pod

from cluster.kubectl import Kubectl
from cluster.shell import Shell

pytestmark = pytest.mark.timeout(3600)  # Kubernetes and the images are built the first time
MODEL = "smollm2"
QUESTION = "How do plants make food?"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def stream_an_answer(port: int) -> str:
    """Asks as a client outside of the cluster does, and shows the answer as it comes."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    pieces: list[str] = []
    with client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_completion_tokens=60,
        stream=True,
    ) as stream:
        for chunk in stream:
            if chunk.choices and (piece := chunk.choices[0].delta.content):
                print(piece, end="", flush=True)
                pieces.append(piece)
    print(flush=True)
    client.close()
    assert len(pieces) > 5, "it came as a stream"
    return "".join(pieces)


def test_walkthrough(shell: Shell, operator: Kubectl, kubeconfig: Path) -> None:
    begin = time.monotonic()
    shell.run("kubectl get pods --namespace pagelet-system")
    shell.run("kubectl apply --filename examples/minimal.yaml")
    shell.run(f"kubectl wait inferenceservice/{MODEL} --for=condition=Ready --timeout=10m")
    print(f"\nReady after {time.monotonic() - begin:.0f} s")
    shell.run("kubectl get inferenceservices")
    shell.run(f"kubectl get pods --selector pagelet.dev/service={MODEL} --output wide")

    kubectl = Kubectl(kubeconfig)
    (listening,) = kubectl.get("service", MODEL)["spec"]["ports"]
    port = free_port()
    forward = f"kubectl port-forward service/{MODEL} {port}:{listening['port']}"
    with shell.background(forward, until="Forwarding from 127.0.0.1"):
        print(f"\n> {QUESTION}   (from outside of the cluster)")
        outside = stream_an_answer(port)

    print(f"\n> {QUESTION}   (from a pod)", flush=True)
    url = f"http://{MODEL}.default.svc:{listening['port']}"
    inside = ask_from_a_pod(kubectl, url, MODEL, QUESTION)
    assert inside == outside, "greedy answers are the same"

    shell.run(f"kubectl delete inferenceservice {MODEL} --wait")
