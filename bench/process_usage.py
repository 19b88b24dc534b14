"""What a process and all that it started have used, from Linux's /proc."""

import contextlib
import dataclasses
import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PARENT, _UTIME, _STIME, _RSS = 1, 11, 12, 21
"""Places in /proc/PID/stat, counted from what follows the command's name."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """Of several processes together."""

    cpu_seconds: float
    resident_bytes: int


def usage_of_tree(pid: int) -> Usage:
    """Of a process and its descendants that still run."""
    stats: dict[int, list[str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # it has just ended
                stats[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
    children: dict[int, list[int]] = {}
    for child, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(child)
    ticks = pages = 0
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, ())
        if process in stats:
            fields = stats[process]
            ticks += int(fields[_UTIME]) + int(fields[_STIME])
            pages += int(fields[_RSS])
    return Usage(ticks / _TICKS, pages * _PAGE)
