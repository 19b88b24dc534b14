"""Child processes: configuration in, reports out, and no life without the parent."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagelet.process.child import ChildProcess
from pagelet.protocol.exit_codes import EXIT_CONFIGURATION
from support.processes import is_alive, wait_for

CHILD = """
import os, signal, sys, time
from pagelet.process.child import ParentLink
config, parent = ParentLink.accept(int(sys.argv[-1]), dict)
if config["do"] == "fail":
    parent.fail("block_size 7 is not one of 8, 16, 32")
if config["do"] == "beat":
    for _ in range(5000):
        parent.beat()
    open(config["file"], "w").close()
if config["do"] == "ignore signals":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if config["do"] == "have a child":
    import subprocess
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(config["file"], "w").write(f"{os.getpid()} {grandchild.pid}")
parent.report_serving("a model")
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    return str(path)


@pytest.fixture
def start(script: str) -> Iterator[Callable[..., ChildProcess]]:
    children = []

    def start(**configuration: str) -> ChildProcess:
        children.append(ChildProcess([script], configuration))
        return children[-1]

    yield start
    for child in children:
        child.kill_group()
        child.wait()
        child.close()


def test_reports_that_it_serves(start: Callable[..., ChildProcess]) -> None:
    child = start(do="serve")
    wait_for(lambda: child.serving == "a model")
    assert child.poll() is None
    assert child.failure is None
    assert os.getpgid(child.pid) == child.pid


def test_says_why_it_cannot_work(start: Callable[..., ChildProcess]) -> None:
    child = start(do="fail")
    assert child.wait(60) == EXIT_CONFIGURATION
    assert child.failure == "block_size 7 is not one of 8, 16, 32"
    assert child.serving is None


def test_a_parent_that_is_stopped_keeps_no_child_waiting(
    start: Callable[..., ChildProcess], tmp_path: Path
) -> None:
    """More beats than fit between two processes: what does not is left out, never cut in two."""
    went_on = tmp_path / "went on"
    child = start(do="beat", file=str(went_on))
    wait_for(went_on.exists)
    wait_for(lambda: child.serving == "a model")
    assert child.beats
    assert child.has_beaten()
    assert not child.has_beaten(), "none since"


def test_one_that_does_not_beat_is_known_as_such(start: Callable[..., ChildProcess]) -> None:
    child = start(do="serve")
    wait_for(lambda: child.serving == "a model")
    assert not child.beats
    assert not child.has_beaten()


def test_a_large_configuration_arrives(start: Callable[..., ChildProcess]) -> None:
    child = start(do="serve", filler="x" * (4 << 20))
    wait_for(lambda: child.serving == "a model")


def test_ends_when_the_parent_lets_go(start: Callable[..., ChildProcess]) -> None:
    child = start(do="ignore signals")
    wait_for(lambda: child.serving == "a model")
    child.close()
    assert child.wait(60) != 0


def test_sigusr1_prints_stacks_and_the_child_lives_on(
    start: Callable[..., ChildProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    child = start(do="serve")
    wait_for(lambda: child.serving == "a model")
    child.send_signal(signal.SIGUSR1)
    seen: list[str] = []
    wait_for(lambda: seen.append(capfd.readouterr().err) or "child.py" in "".join(seen))
    assert child.poll() is None


def test_killing_the_parent_leaves_no_grandchild(script: str, tmp_path: Path) -> None:
    pids_file = tmp_path / "pids"
    code = f"""
    import time
    from pagelet.process.child import ChildProcess
    child = ChildProcess([{script!r}], {{"do": "have a child", "file": {str(pids_file)!r}}})
    time.sleep(600)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    wait_for(lambda: pids_file.exists() and len(pids_file.read_text().split()) == 2)
    child, grandchild = map(int, pids_file.read_text().split())
    parent.kill()
    parent.wait()
    try:
        wait_for(lambda: not is_alive(child))
    finally:
        os.kill(grandchild, signal.SIGKILL)  # not one of ours: it never accepted a parent
