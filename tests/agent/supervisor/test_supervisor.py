"""The process tree under kills, hangs and signals, with stand-ins for the real processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pagelet.agent.supervisor.startup_view import StartupView
from pagelet.agent.supervisor.supervisor import _SAME_REQUEST_SECONDS, Supervisor
from pagelet.process.managed import Managed
from support.processes import MARKER, is_alive, marked_processes, signal_marked, wait_for

AS_PID_1 = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
STUB = str(Path(__file__).parent / "stub.py")


class Tree:
    """A supervisor, its children, and what they say."""

    def __init__(self, folder: Path, settings: dict[str, str], wrapper: Sequence[str]) -> None:
        self.folder = folder
        self.marker = uuid.uuid4().hex
        self.log = folder / "log"
        arguments = [f"{key}={value}" for key, value in settings.items()]
        with self.log.open("w") as log:
            self.supervisor = subprocess.Popen(
                [*wrapper, sys.executable, STUB, "supervise", str(folder), *arguments],
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | {MARKER: self.marker},
            )

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def wait_ready(self) -> "Tree":
        wait_for(lambda: self.said("Serving stub"))
        return self

    def starts(self, role: str) -> list[int]:
        path = self.folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(role)]

    def connect(self, message: bytes = b"quick") -> socket.socket:
        port = int((self.folder / "port").read_text())
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(message)
        return connection

    def ask(self) -> int:
        with self.connect() as connection:
            return int(connection.recv(16) or b"0")

    def assert_nothing_left(self) -> None:
        wait_for(lambda: not marked_processes(self.marker))

    def close(self) -> None:
        self.supervisor.kill()
        self.supervisor.wait()
        signal_marked(self.marker, signal.SIGKILL)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Callable[..., Tree]]:
    trees = []

    def start(wrapper: Sequence[str] = (), **settings: str) -> Tree:
        trees.append(Tree(tmp_path, settings, wrapper))
        return trees[-1]

    yield start
    for tree in trees:
        tree.close()


def test_a_killed_api_process_comes_back_and_the_port_stays_bound(
    tree: Callable[..., Tree],
) -> None:
    running = tree().wait_ready()
    first = running.ask()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not is_alive(first))
    second = running.ask()  # the connection waits for the new process, it is not refused
    assert second != first
    assert running.starts("api") == [first, second]
    assert len(running.starts("core")) == 1


def test_a_killed_core_comes_back_and_its_workers_do_not_stay(tree: Callable[..., Tree]) -> None:
    running = tree().wait_ready()
    before = set(marked_processes(running.marker))
    (core,) = running.starts("core")
    os.kill(core, signal.SIGKILL)
    wait_for(lambda: len(running.starts("core")) == 2)

    def gone() -> set[int] | None:
        """Once as many are there as before."""
        now = set(marked_processes(running.marker))
        return before - now if len(now) == len(before) and len(before - now) > 1 else None

    found = wait_for(gone)
    assert core in found
    assert len(found) == 2  # the core and its worker
    assert running.said("engine core 0 ended with signal SIGKILL; starting it again in 0.5 s")


def test_a_crash_loop_ends_with_the_reason(tree: Callable[..., Tree]) -> None:
    running = tree(core="crash")
    assert running.supervisor.wait(120) == 1
    assert len(running.starts("core")) == 5
    assert running.log.read_text().splitlines()[-1] == (
        "Error: engine core 0 ended with exit code 3, 5 times in a row; its log above says why"
    )
    running.assert_nothing_left()


def test_a_configuration_that_cannot_work_is_not_tried_again(tree: Callable[..., Tree]) -> None:
    running = tree(core="cannot work")
    assert running.supervisor.wait(60) == 78
    assert len(running.starts("core")) == 1
    assert running.log.read_text().splitlines()[-1] == "Error: --block-size 7: use 8, 16 or 32"
    running.assert_nothing_left()


def test_what_has_worked_waits_for_its_model(tree: Callable[..., Tree]) -> None:
    running = tree().wait_ready()
    away = running.folder / "model is away"
    away.touch()
    os.kill(running.starts("core")[0], signal.SIGKILL)
    told = "engine core 0 ended with exit code 78: the model is away; starting it again in 1 s"
    wait_for(lambda: running.said(told))
    away.unlink()
    wait_for(lambda: running.said("engine core 0 serves again"))
    assert running.starts("api") == [running.ask()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(tree: Callable[..., Tree], number: signal.Signals) -> None:
    running = tree().wait_ready()
    pid = running.ask()
    with running.connect(b"slow") as slow:
        assert running.ask() == pid  # so the slow one has been accepted
        running.supervisor.send_signal(number)
        assert slow.recv(16) == str(pid).encode()
    assert running.supervisor.wait(60) == 0
    running.assert_nothing_left()


@pytest.mark.parametrize("api", ["never drains", "never ends"])
def test_the_second_signal_stops_at_once(tree: Callable[..., Tree], api: str) -> None:
    running = tree(api=api).wait_ready()
    running.supervisor.send_signal(signal.SIGTERM)
    wait_for(lambda: running.said("draining"))
    time.sleep(_SAME_REQUEST_SECONDS)
    running.supervisor.send_signal(signal.SIGTERM)
    assert running.supervisor.wait(60) == 128 + signal.SIGTERM
    assert (running.folder / "cut off").exists(), "the API process may tell its clients"
    running.assert_nothing_left()


def test_sigquit_stops_at_once_without_a_drain(tree: Callable[..., Tree]) -> None:
    running = tree(api="never drains").wait_ready()
    running.supervisor.send_signal(signal.SIGQUIT)
    assert running.supervisor.wait(60) == 128 + signal.SIGQUIT
    assert (running.folder / "cut off").exists()
    assert not running.said("draining")
    running.assert_nothing_left()


def test_a_signal_that_comes_twice_at_once_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    idle = Managed("API server", subprocess.Popen)
    supervisor = Supervisor(idle, [], drain_timeout=1.0, view=StartupView("http://here"))
    for now[0] in (100.0, 100.1, 100.4):
        supervisor._handle_signal(signal.SIGINT)
    assert "stopping at once" not in caplog.text
    now[0] = 100.6
    supervisor._handle_signal(signal.SIGINT)
    assert "SIGINT again: stopping at once" in caplog.text


def test_a_signal_during_start_up_just_stops(tree: Callable[..., Tree]) -> None:
    running = tree()
    wait_for(lambda: running.starts("core"))
    running.supervisor.send_signal(signal.SIGINT)
    assert running.supervisor.wait(60) == 0
    running.assert_nothing_left()


def test_a_core_that_ignores_sigterm_is_killed(tree: Callable[..., Tree]) -> None:
    running = tree(core="ignore SIGTERM").wait_ready()
    running.supervisor.send_signal(signal.SIGTERM)
    assert running.supervisor.wait(60) == 0
    running.assert_nothing_left()


def test_sighup_changes_nothing(tree: Callable[..., Tree]) -> None:
    running = tree().wait_ready()
    pid = running.ask()
    running.supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: running.said("SIGHUP ignored"))
    assert running.ask() == pid


def test_a_killed_supervisor_leaves_nothing(tree: Callable[..., Tree]) -> None:
    running = tree().wait_ready()
    core_and_api = [*running.starts("core"), *running.starts("api")]
    running.supervisor.kill()
    wait_for(lambda: not any(is_alive(pid) for pid in core_and_api))


def test_a_hung_step_is_named_and_killed(tree: Callable[..., Tree]) -> None:
    running = tree(step_timeout="1").wait_ready()
    (core,) = running.starts("core")
    (running.folder / "hang").touch()
    wait_for(lambda: len(running.starts("core")) == 2)
    assert running.said("engine core 0 is hung: step 8 made no progress for")
    assert running.said("with 2 unfinished requests")
    assert running.said("in hung_step")  # the stack dump
    assert not is_alive(core)


def test_an_api_process_that_is_stopped_is_replaced(tree: Callable[..., Tree]) -> None:
    running = tree(silent="5").wait_ready()
    first = running.ask()
    os.kill(first, signal.SIGSTOP)
    wait_for(lambda: len(running.starts("api")) >= 2)
    assert running.said("API server is hung: no sign of life for")
    assert not is_alive(first)
    assert running.ask() != first
    assert len(running.starts("core")) == 1


def test_orphans_are_adopted_and_reaped(tree: Callable[..., Tree]) -> None:
    running = tree(core="leave an orphan").wait_ready()
    orphan = Path("/proc", (running.folder / "orphan").read_text().strip())
    parent = (orphan / "stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) == running.supervisor.pid
    os.kill(int(orphan.name), signal.SIGTERM)
    wait_for(lambda: not orphan.exists())  # a zombie would still be there


def test_a_process_that_left_its_group_does_not_stay(tree: Callable[..., Tree]) -> None:
    running = tree(core="leave a daemon").wait_ready()
    running.supervisor.send_signal(signal.SIGTERM)
    assert running.supervisor.wait(60) == 0
    running.assert_nothing_left()


def may_unshare() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([*AS_PID_1, "true"]).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="needs the right to make a PID namespace")
def test_works_as_pid_1(tree: Callable[..., Tree]) -> None:
    running = tree(wrapper=AS_PID_1, core="leave an orphan").wait_ready()
    wrapper = running.supervisor.pid
    pid_1 = int(Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text())
    pid = running.ask()
    with running.connect(b"slow") as slow:
        assert running.ask() == pid
        os.kill(pid_1, signal.SIGTERM)
        assert slow.recv(16) == str(pid).encode()
    assert running.supervisor.wait(60) == 0
    running.assert_nothing_left()
