"""A module that runs tied to its parent ends with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.processes import is_alive, wait_for

MODULE = "import os, sys, time\nprint(os.getpid(), *sys.argv[1:], flush=True)\ntime.sleep(600)\n"
PARENT = """
import os, subprocess, sys
subprocess.run([sys.executable, "-m", "pagelet.process.tied", str(os.getpid()), "tied_child", "a"])
"""


def test_it_has_its_arguments_and_does_not_outlive_its_parent(tmp_path: Path) -> None:
    (tmp_path / "tied_child.py").write_text(MODULE)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    with parent:
        assert parent.stdout is not None
        pid, *arguments = parent.stdout.readline().split()
        assert arguments == ["a"]
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))


def test_one_whose_parent_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    (tmp_path / "tied_child.py").write_text(MODULE)
    result = subprocess.run(
        [sys.executable, "-m", "pagelet.process.tied", str(os.getppid()), "tied_child"],
        check=False,
        capture_output=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert result.returncode == 1
    assert result.stdout == b""
