"""One question to a service, from a pod."""

import json
from pathlib import Path
from typing import Any, Final

from client.constant import wait_for

from cluster.images import PAGELET_IMAGES
from cluster.kubectl import Kubectl

_SCRIPT: Final = Path(__file__).parent / "ask.py"
_POD: Final = "client"


def ask_from_a_pod(kubectl: Kubectl, url: str, model: str, question: str) -> str:
    """The greedy answer. The pod is gone afterwards. Raises `AssertionError` without an answer.

    What the pod wrote is read once it has ended: `kubectl run --rm --stdin` prints only what comes
    once it is attached, which for a quick answer may be nothing.
    """
    asked = json.dumps({"url": url, "model": model, "question": question, "max_tokens": 60})
    command = ["python3", "-c", _SCRIPT.read_text(), asked]
    container = {"name": _POD, "image": PAGELET_IMAGES["router"], "command": command}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _POD},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }

    def phase() -> str:
        return str(kubectl.get("pod", _POD)["status"]["phase"])

    kubectl.apply(pod)
    try:
        wait_for("the client's end", lambda: phase() in ("Succeeded", "Failed"), 300)
        answer = kubectl.run("logs", _POD)
        print(answer, flush=True)
        assert phase() == "Succeeded", answer
    finally:
        kubectl.run("delete", "pod", _POD, "--now")
    text: str = json.loads(answer.strip().splitlines()[-1])["text"]
    return text
