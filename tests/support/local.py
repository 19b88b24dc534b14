"""`pagelet up` in tests: real processes, the simulated runner."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai

from support.processes import MARKER, marked_processes, signal_marked, wait_for

PAGELET = (sys.executable, "-m", "pagelet.cli")


class Local:
    """A file, a state directory, and the commands on them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "service.yaml"
        self.state = folder / "state"
        self.output = folder / "output"
        self.marker = uuid.uuid4().hex
        self.process: subprocess.Popen[bytes] | None = None
        self._environment = os.environ | {MARKER: self.marker, "OMP_NUM_THREADS": "1"}

    def write(self, *documents: str) -> None:
        """Replaces the file."""
        self.file.write_text("---\n".join(documents))

    def start(self, *arguments: str) -> "Local":
        """`pagelet up` in the foreground, on a free port."""
        # Where a shell runs the tests in its background, SIGINT would stay ignored, as asked for.
        command = ["env", "--default-signal=INT", *PAGELET, "up", "-f", str(self.file)]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--port", "0", *self._state(), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
            )
        return self

    def command(self, *arguments: str, code: int = 0) -> str:
        """What a command printed. Fails if its exit code is another."""
        result = subprocess.run(
            [*PAGELET, *arguments, *self._state()],
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
            env=self._environment,
        )
        assert result.returncode == code, result.stdout + result.stderr + self.said()
        return result.stdout + result.stderr

    def said(self) -> str:
        """What `up` printed so far."""
        return self.output.read_text() if self.output.exists() else ""

    def status(self) -> dict[str, Any] | None:
        """As `ps --json` has it; None while there is none."""
        try:
            owner = json.loads((self.state / "owner.json").read_bytes())
            return self._ask(owner["control"])
        except (OSError, ValueError):
            return None

    def replicas(self, pool: str = "sim") -> dict[str, dict[str, Any]]:
        """Of a pool, by id; empty while there is no supervisor."""
        pools = {found["name"]: found for found in (self.status() or {"pools": []})["pools"]}
        return {r["id"]: r for r in pools[pool]["replicas"]} if pool in pools else {}

    def phases(self, pool: str = "sim") -> dict[str, str]:
        """Of a pool's replicas."""
        return {name: replica["phase"] for name, replica in self.replicas(pool).items()}

    def wait_phases(self, *phases: str, pool: str = "sim") -> dict[str, str]:
        """Waits until a pool's replicas are at these, in order of their start."""

        def reached() -> dict[str, str] | None:
            assert self.process is None or self.process.poll() is None, self.said()
            found = self.phases(pool)
            return found if list(found.values()) == list(phases) else None

        return wait_for(reached)

    def client(self) -> openai.OpenAI:
        """Of the router. It tries nothing twice: a failed request is seen as one."""
        status = self.status()
        assert status is not None
        return openai.OpenAI(base_url=f"{status['url']}/v1", api_key="none", max_retries=0)

    def signal(self, number: signal.Signals) -> None:
        """To the supervisor."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait_end(self) -> int:
        """The exit code of `up`, once it and everything that it started are gone."""
        assert self.process is not None
        returncode = self.process.wait(100)
        wait_for(lambda: not marked_processes(self.marker))
        return returncode

    def close(self) -> None:
        """Ends whatever is left."""
        signal_marked(self.marker, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def _state(self) -> tuple[str, str]:
        return "--state-dir", str(self.state)

    def _ask(self, path: str) -> dict[str, Any]:
        """As `pagelet ps` does, without the time that a new process takes."""
        from pagelet.local.control import Call, ControlError, call

        try:
            status: dict[str, Any] = call(path, Call(command="status"), dict)
        except ControlError as error:
            raise OSError(str(error)) from None
        return status


@contextlib.contextmanager
def local(folder: Path) -> Iterator[Local]:
    """Leaves nothing behind."""
    made = Local(folder)
    try:
        yield made
    finally:
        made.close()
