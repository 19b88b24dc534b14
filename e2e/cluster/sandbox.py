"""A machine of the cluster: a Python module run in Linux namespaces of its own.

Its processes, network devices, packet filter and mounts exist in these namespaces only, so nothing
of a cluster can be left behind: when the module's process ends, by whatever cause, the kernel ends
every process in the machine and takes its network and mounts away. The module runs as long as its
standard input is open, so it stops cleanly also after a SIGKILL of the process that started it.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_IMPORT_ROOT: Final = Path(__file__).parent.parent
_UNSHARE: Final = (
    *("unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
    *("--mount", "--propagation", "private", "--net", "--ipc", "--uts"),
)
_STOP_SECONDS: Final = 60.0


class SandboxFailed(Exception):
    """A machine did not come up or went away; the message says why."""


class Sandbox:
    """One machine. Use it as a context manager; `started` gets the pid of its first process, as
    seen here, before its module goes on, so that network devices can be moved into it."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        started: Callable[[int], None],
        said: Callable[[str], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._module = module
        self._said = said
        path = os.pathsep.join(filter(None, [str(_IMPORT_ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [*_UNSHARE, sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C is for us, who then stop it in order
        )
        try:
            self._expect("entered")
            self.pid = self._first_pid()
            started(self.pid)
            self.ask("go")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, *request: str) -> None:
        """Has the machine do something, and returns when it is done. Raises `SandboxFailed`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise SandboxFailed(f"{self._module} is gone") from error
        self._expect("done")

    def close(self) -> None:
        """Stops all that runs in the machine, in order, and waits for its end."""
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and with it, by --kill-child, the machine's first process
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs `arguments` inside of the machine."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--", *arguments]

    def _first_pid(self) -> int:
        parent = self._process.pid
        return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])

    def _expect(self, kind: str) -> None:
        """Reads messages up to one of `kind`, passing on what the machine says meanwhile."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message["kind"] == kind:
                return
            if message["kind"] == "failed":
                raise SandboxFailed(message["text"])
            self._said(message["text"])
        raise SandboxFailed(f"{self._module} ended unexpectedly")


class Inside:
    """The machine's own end: what a module that runs in a `Sandbox` talks to its starter with.

    When the starter wants the machine to stop, or is gone, the main thread gets a
    `KeyboardInterrupt`, whatever it is waiting for.
    """

    def __init__(self) -> None:
        _leave_first_process()
        # Ignored by default in what a shell started in the background, and its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._requests: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._tell("entered")
        self.next_request()  # to go on; answered by the module when it is up

    def say(self, text: str) -> None:
        """Shows what goes on now to whoever started the machine."""
        self._tell("said", text=text)

    def done(self) -> None:
        """Answers the last request."""
        self._tell("done")

    def failed(self, text: str) -> None:
        """Answers the last request with why it could not be done."""
        self._tell("failed", text=text)

    def next_request(self) -> list[str]:
        """Blocks for the next request."""
        return self._requests.get()

    def _read(self) -> None:
        for line in sys.stdin:
            self._requests.put(json.loads(line))
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        signal.pthread_kill(main_thread, signal.SIGINT)

    def _tell(self, kind: str, **values: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"kind": kind, **values}), flush=True)


def _leave_first_process() -> None:
    """Goes on in a child. The first process only reaps: containers' shims outlive their parents
    and become its children, and collecting them here would race with `subprocess`."""
    child = os.fork()
    while child:
        pid, status = os.wait()
        if pid == child:
            os._exit(0 if status == 0 else 1)


def run(*command: str) -> str:
    """Standard output of a command that must work; its error output is in the exception."""
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise SandboxFailed(f"{' '.join(command)} failed: {result.stderr.strip()}")
    return result.stdout


def wait_until(what: str, true: Callable[[], bool], seconds: float) -> None:
    """Polls a condition. Raises `SandboxFailed` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise SandboxFailed(f"{what} took more than {seconds:.0f} s")
        time.sleep(0.1)
