"""A server process to measure or to show, which never outlives this one."""

import contextlib
import functools
import http.client
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pagelet.process.proc import describe_exit, kill_group, set_parent_death_signal

HOST = "127.0.0.1"
PAGELET = str(Path(sys.executable).with_name("pagelet"))
_GIVEN_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000
_POLL_SECONDS = 0.02
_PROBE_SECONDS = 1.0
_STOP_SECONDS = 20.0


class ServerFailed(RuntimeError):
    """The server did not start; the message ends with what it wrote."""


class Server:
    """A running server: its port, and what it has written to stdout and stderr."""

    def __init__(
        self, process: subprocess.Popen[bytes], port: int, log: Path, ready_path: str
    ) -> None:
        self.port = port
        self._process = process
        self._log = log
        self._ready_path = ready_path

    @property
    def address(self) -> str:
        """Such as `http://127.0.0.1:8000`."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    def last_lines(self, count: int) -> str:
        """The end of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-count:])

    def ready(self) -> bool:
        """Whether its path for this answers 200."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_PROBE_SECONDS)
        with (
            contextlib.closing(connection),
            contextlib.suppress(OSError, http.client.HTTPException),
        ):
            connection.request("GET", self._ready_path)
            return connection.getresponse().status == 200
        return False

    def wait_until_ready(self, timeout: float, on_wait: Callable[[float], None]) -> float:
        """Returns the seconds that it took; calls `on_wait` with the seconds so far.

        Raises `ServerFailed` if the process ends or is not ready within `timeout` seconds.
        """
        begin = time.monotonic()
        while not self.ready():
            waited = time.monotonic() - begin
            if (returncode := self._process.poll()) is not None:
                reason = f"the server ended with {describe_exit(returncode)}"
                raise ServerFailed(f"{reason}:\n{self.last_lines(30)}")
            if waited > timeout:
                reason = f"the server is not ready after {timeout:.0f} s"
                raise ServerFailed(f"{reason}:\n{self.last_lines(30)}")
            on_wait(waited)
            time.sleep(_POLL_SECONDS)
        return time.monotonic() - begin

    def wait(self) -> None:
        """Returns when the process has ended by itself."""
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, as Kubernetes does; SIGKILL if that does not help, or on another Ctrl-C."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
        kill_group(self._process.pid)  # children that it left behind


@contextlib.contextmanager
def running_server(arguments: Sequence[str], port: int | None = None) -> Iterator[Server]:
    """Starts `pagelet serve ARGUMENTS` on `port` or a free one, and stops it at the end.

    It is not ready yet: call `wait_until_ready`. Call from the main thread, since the server dies
    with the thread that started it, however that ends. Ctrl-C in a terminal does not reach it.
    """
    port = free_port() if port is None else port
    command = [PAGELET, "serve", *arguments, "--host", HOST, "--port", str(port)]
    with running_command(command, port) as server:
        yield server


@contextlib.contextmanager
def running_command(
    command: Sequence[str], port: int, ready_path: str = "/ready"
) -> Iterator[Server]:
    """As `running_server`, for any command that serves HTTP on `port` and answers 200 on
    `ready_path` as soon as it can work. At the end, its whole process group is gone."""
    with tempfile.NamedTemporaryFile(prefix="pagelet-serve-", suffix=".log") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PAGELET": PAGELET},
            process_group=0,
            preexec_fn=functools.partial(set_parent_death_signal, os.getpid()),
        )
        server = Server(process, port, Path(log.name), ready_path)
        try:
            yield server
        finally:
            server.stop()


def free_port(preferred: int = 0) -> int:
    """`preferred` if nobody listens on it, else any free port.

    If possible one that the system gives to nobody by itself: until the server listens there, a
    connection of any program could have been given it, or who listens on port 0.
    """
    kept = _ports_not_given()
    drawn = random.SystemRandom().sample(kept, min(len(kept), 100))
    for port in (*([preferred] if preferred else []), *drawn, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise OSError(f"no TCP port is free on {HOST}")


def _ports_not_given() -> range:
    """Below those that the system gives by itself; empty where it gives all."""
    try:
        lowest_given = int(_GIVEN_PORTS.read_text().split()[0])
    except OSError:
        lowest_given = 0
    return range(_LOWEST_PORT, lowest_given)
