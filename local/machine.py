"""What a replica gets of this machine: GPUs of its own, or a share of cores and memory."""

import dataclasses
import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pagelet.process.host_memory import read_host_memory
from pagelet.protocol.sizes import format_bytes

_MOST_SHARES = 2.0
"""Of all replicas together, so that an update's new replicas fit beside the old ones. The engine
takes less than half of its share by default, and never more than what is really free."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What replicas on the CPU share."""

    cores: int
    memory: int
    """In bytes."""


def this_machine() -> Machine:
    """As far as this process may use it."""
    return Machine(len(os.sched_getaffinity(0)), read_host_memory().total)


@dataclasses.dataclass(frozen=True)
class Demand:
    """What the replicas of a pool are to have of the CPU, all together."""

    pool: str
    replicas: int
    cores: float
    """At least one for each engine that computes."""
    memory: int
    """What the file gives them; 0 where it leaves the size to the engine, which looks what is
    free."""
    cores_field: str | None = None
    """By which the file says how many a replica has; None where nothing is said, and it is one."""


def crowding(demands: Sequence[Demand], machine: Machine) -> Iterator[str]:
    """What is more than the machine has, in words: nothing keeps replicas from it, but they make
    one another slow, or are killed."""
    who = " and ".join(f"{demand.pool} x {demand.replicas}" for demand in demands)
    cores = sum(demand.cores for demand in demands)
    if cores > machine.cores:
        fields = dict.fromkeys(d.cores_field for d in demands if d.cores and d.cores_field)
        lower = f", or lower {' or '.join(fields)}" if fields else ""
        yield (
            f"{who}: {cores:g} cores are asked for, and this machine has {machine.cores}: answers "
            f"become slower; run fewer replicas{lower}"
        )
    memory = sum(demand.memory for demand in demands)
    if memory > machine.memory:
        yield (
            f"{who}: {format_bytes(memory)} of memory are asked for, and this machine has "
            f"{format_bytes(machine.memory)}: the kernel may kill one; run fewer replicas, or "
            "lower spec.resources.memory"
        )


def visible_gpus(devices: Path = Path("/dev")) -> list[str]:
    """GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    names = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return sorted((name[1] for name in names if name), key=int)


def choose_gpus(count: int, gpus: Sequence[str], taken: Collection[str]) -> list[str] | None:
    """`count` GPUs that are not taken; None if there are not so many."""
    free = [gpu for gpu in gpus if gpu not in taken]
    return free[:count] if len(free) >= count else None


def next_share(wanted: int, in_use: Sequence[float]) -> float:
    """The share of the next replica on the CPU, where `wanted` are to run in the end and those that
    run have the shares `in_use`.

    A share stays with a replica as long as it lives, so that nothing restarts when others come.
    Then equal parts could add up to more than there is; no more than half of what is left to give
    is given at once.
    """
    left = _MOST_SHARES - sum(in_use)
    return min(1 / max(1, wanted), left / 2)
