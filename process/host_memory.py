"""How much memory this process may really use: the machine's, or its cgroup's if that is less."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """In bytes."""

    total: int
    available: int
    """Free, or in use for caches that the kernel gives up when asked."""


def read_host_memory() -> HostMemory:
    """The tightest of the machine's memory and the limits of this process's cgroups (v2 or v1, and
    their parents), now."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for limit, used in _cgroup_limits(_ROOT, _PROC_CGROUP):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return HostMemory(total, available)


def _cgroup_limits(root: Path, proc_cgroup: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each memory cgroup above this process that has a limit. Pages of files that
    are not in active use do not count as used: the kernel drops them first."""
    for folder, limit_name, usage_name, inactive_name in _memory_folders(root, proc_cgroup):
        try:
            limit = int((folder / limit_name).read_text())  # v2 says "max" where there is none
            used = int((folder / usage_name).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        yield limit, used - int(stat.get(inactive_name, 0))


def _memory_folders(root: Path, proc_cgroup: Path) -> Iterator[tuple[Path, str, str, str]]:
    try:
        lines = proc_cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Inside of a container the path may be that of the host, which is not mounted: the
        # container's own limits are then at the mount's root, the last of the parents.
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents):
            yield folder, *names
            if folder == base:
                break
