"""One question to a service, from a pod."""

import json
from pathlib import Path
from typing import Final

from cluster.images import PAGELET_IMAGES
from cluster.kubectl import Kubectl

_SCRIPT: Final = Path(__file__).parent / "ask.py"


def ask_from_a_pod(kubectl: Kubectl, url: str, model: str, question: str) -> str:
    """The greedy answer. The pod is gone afterwards."""
    asked = json.dumps({"url": url, "model": model, "question": question, "max_tokens": 60})
    options = [f"--image={PAGELET_IMAGES['router']}", "--restart=Never", "--rm", "--stdin"]
    command = ["--quiet", "--command", "--", "python3", "-c", _SCRIPT.read_text(), asked]
    answer = kubectl.run("run", "client", *options, *command)
    print(answer, flush=True)
    text: str = json.loads(answer.strip().splitlines()[-1])["text"]
    return text
