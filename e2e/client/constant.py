"""A constant stream of requests from a pod, while a test changes things."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from cluster.cache import say
from cluster.kubectl import CommandFailed, Kubectl

_SCRIPT: Final = Path(__file__).parent / "streams.py"
_POD: Final = "streams"
_PATIENCE: Final = 600.0


def wait_for(what: str, true: Callable[[], bool], seconds: float = _PATIENCE) -> None:
    """Polls the cluster. Raises `AssertionError` when it takes too long; what kubectl cannot tell
    now is asked again."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(CommandFailed):
            if true():
                return
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(1)


class ConstantStreams:
    """A pod that streams answers of a service, `workers` at a time."""

    def __init__(self, kubectl: Kubectl, image: str, url: str, model: str, workers: int) -> None:
        self._kubectl = kubectl
        self.answers: dict[str, dict[str, int]] = {}
        """By question: each text that came, and how often."""
        command = ["python3", "-c", _SCRIPT.read_text(), url, model, str(workers)]
        self._pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _POD},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": _POD, "image": image, "command": command}],
                "nodeSelector": {"kubernetes.io/hostname": "node-1"},  # another one is drained
            },
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Streams flow during the block and for some answers after it. Then every one of them must
        have been whole. Raises `AssertionError`."""
        self._kubectl.apply(self._pod)
        wait_for("first answers", lambda: self.completed() >= 3)
        yield
        enough = self.completed() + 3
        wait_for("answers after the change", lambda: self.completed() >= enough)
        self._kubectl.run("exec", _POD, "--", "touch", "/tmp/stop")
        wait_for("the client's end", lambda: "summary" in self._lines()[-1])
        lines = self._lines()
        summary = lines[-1]["summary"]
        say(f"{summary['completed']} streams completed, {summary['failed']} failed")
        assert summary["failed"] == 0, [line for line in lines if "failed" in line]
        self.answers = summary["answers"]
        self._kubectl.run("delete", "pod", _POD, "--now")

    def completed(self) -> int:
        """Whole answers so far."""
        return int(self._lines()[-1].get("completed", 0))

    def _lines(self) -> list[dict[str, Any]]:
        """What the client said; never empty."""
        text = self._kubectl.run("logs", _POD)
        return [json.loads(line) for line in text.splitlines()] or [{}]
