"""How many cores this process may use, by its affinity and its cgroup."""

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """At least 1. A CPU quota of 1.5 cores counts as 1: a second thread would be throttled and
    make the first one wait."""
    cores = len(os.sched_getaffinity(0))
    quota = cgroup_quota()
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def cgroup_quota(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> float | None:
    """The CPU quota of this process's cgroup or of one above it, in cores; None without one."""
    quotas = []
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            base, read = root, _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = root / "cpu", _quota_v1
        else:
            continue
        group = base / path.lstrip("/")
        # In a container the root of the hierarchy is often mounted as the group itself.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            if (quota := read(folder)) is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> float | None:
    for line in _lines(folder / "cpu.max"):
        quota, period = line.split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _quota_v1(folder: Path) -> float | None:
    quota = [int(line) for line in _lines(folder / "cpu.cfs_quota_us")]
    period = [int(line) for line in _lines(folder / "cpu.cfs_period_us")]
    return quota[0] / period[0] if quota and period and quota[0] > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
