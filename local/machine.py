"""What a replica gets of this machine: GPUs of its own, or a share of cores and memory."""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

_MOST_SHARES = 2.0
"""Of all replicas together, so that an update's new replicas fit beside the old ones. The engine
takes less than half of its share by default, and never more than what is really free."""


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
