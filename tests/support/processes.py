"""Watching real process trees in tests."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

MARKER = "PAGELET_TEST_TREE"
T = TypeVar("T")


def wait_for(what: Callable[[], T | None], seconds: float = 120.0) -> T:
    """Polls until `what` returns something true; fails after a generous time."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, f"it did not come to that in {seconds} s"
        time.sleep(0.05)
    return value


def marked_processes(marker: str) -> list[int]:
    """Living processes whose environment has our marker: a whole tree, whoever is its parent."""
    wanted, pids = f"{MARKER}={marker}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0") and is_alive(entry.name):
                    pids.append(int(entry.name))
            except (OSError, ProcessLookupError):
                continue
    return pids


def signal_marked(marker: str, number: int) -> None:
    """To all of a tree that still live: others may end meanwhile, as those do whose parent was
    killed just before."""
    for pid in marked_processes(marker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def arguments_of(pid: int) -> list[str]:
    """Its command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(pid: int | str) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
