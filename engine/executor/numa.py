"""Which CPUs each rank of one machine computes on: near its memory, where there are several NUMA
nodes."""

from collections.abc import Collection
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def cpus_of_ranks(
    num_ranks: int, allowed: Collection[int], nodes: Path = _NODES
) -> list[list[int]]:
    """For each rank the CPUs, of those `allowed`, that it may run on.

    Ranks are divided evenly over the NUMA nodes, neighbours side by side, and those of a node share
    its CPUs. Where there is one node, or nodes that the ranks do not divide over, each may run on
    all of them.
    """
    by_node = [
        sorted(cpus)
        for folder in sorted(nodes.glob("node[0-9]*"), key=lambda folder: int(folder.name[4:]))
        if (cpus := _read_cpus(folder / "cpulist") & set(allowed))
    ]
    if len(by_node) < 2 or num_ranks % len(by_node):
        return [sorted(allowed) for _ in range(num_ranks)]
    ranks_a_node = num_ranks // len(by_node)
    return [by_node[rank // ranks_a_node] for rank in range(num_ranks)]


def _read_cpus(path: Path) -> set[int]:
    """Of a list such as `0-3,8-11`; none where it cannot be read."""
    try:
        parts = path.read_text().strip().split(",")
    except OSError:
        return set()
    cpus: set[int] = set()
    for part in filter(None, parts):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus
