"""The cluster's own manners."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cache import CACHE
from cluster.local import CannotRun, check_machine

NAME = "aborted"
PROGRAM = Path(__file__).parent / "kube.py"


@contextlib.contextmanager
def control_plane() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAM), "--nodes=0", f"--name={NAME}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "Ready." in line:
                    break
            else:
                raise AssertionError("".join(lines))
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def processes() -> list[str]:
    """Command lines of all processes of the cluster."""
    folder = os.fsencode(CACHE / "run" / NAME)
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            command = (process / "cmdline").read_bytes()
            if folder in command:
                found.append(command.replace(b"\0", b" ").decode())
    return found


def test_a_killed_run_leaves_nothing_and_the_next_one_works() -> None:
    try:
        check_machine()
    except CannotRun as error:
        pytest.skip(str(error))
    with control_plane() as process:
        assert len(processes()) >= 5
        process.kill()
        process.wait()
    deadline = time.monotonic() + 60
    while processes():
        assert time.monotonic() < deadline, processes()
        time.sleep(0.2)
    with control_plane() as process:
        process.terminate()
        assert process.wait(60) == 0
    assert processes() == []
