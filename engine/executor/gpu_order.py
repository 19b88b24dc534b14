"""Which GPU each rank of a machine takes: those that share layers, GPUs with fast links."""

import os
from collections.abc import Sequence
from typing import Any

NVLINK = 100
"""The closeness of two GPUs with NVLink between them; without, it is by what of the machine lies
between, from 50 (one board) to 0 (the link between processors): `nvidia-smi topo -m` shows it."""


def gpus_by_rank(links: Sequence[Sequence[int]], group_size: int) -> list[int]:
    """For each rank its GPU, where ranks in groups of `group_size` neighbours talk most, and a
    group then with the next one.

    `links` [num_gpus][num_gpus] is symmetric and says how close two GPUs are. A group begins with
    the GPU that is closest to the group before (at first, the first), and grows by the one that is
    closest to all it has; of equals the first is taken, so that equal links keep the order.
    """
    left = list(range(len(links)))
    order: list[int] = []
    while left:
        # The group that it is to be in, or the one before where it begins one.
        near = order[-(len(order) % group_size or group_size) :]
        best = max(left, key=lambda gpu: (sum(links[gpu][other] for other in near), -gpu))
        left.remove(best)
        order.append(best)
    return order


def is_ordered_by_hand(visible: str | None) -> bool:
    """Whether a value of CUDA_VISIBLE_DEVICES says more than which GPUs there are."""
    numbers = (visible or "").split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        return bool(visible)
    return sorted(map(int, numbers)) != list(map(int, numbers))


def read_links(uuids: Sequence[str], nvml: Any) -> list[list[int]] | None:
    """The closeness of GPUs of these UUIDs (`GPU-...`), by the driver; None if it does not tell.
    `nvml` is the module `pynvml`."""
    try:
        nvml.nvmlInit()
        try:
            handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
            return [[_closeness(nvml, a, b) for b in handles] for a in handles]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None


def _closeness(nvml: Any, first: Any, second: Any) -> int:
    if first is second:
        return NVLINK
    linked = nvml.nvmlDeviceGetP2PStatus(first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    if linked == nvml.NVML_P2P_STATUS_OK:
        return NVLINK
    return 50 - int(nvml.nvmlDeviceGetTopologyCommonAncestor(first, second))


def gpu_of_rank(index: int, num_ranks: int, tp_size: int) -> int:
    """The number, as torch has it, of the GPU that this machine's rank of that index takes. It is
    the index itself where CUDA_VISIBLE_DEVICES gives another order than the machine's, on AMD, and
    where fewer GPUs are seen than there are ranks."""
    import torch

    if is_ordered_by_hand(os.environ.get("CUDA_VISIBLE_DEVICES")) or torch.version.hip:
        return index
    if tp_size == 1 or torch.cuda.device_count() < num_ranks:
        return index
    import pynvml

    uuids = [f"GPU-{torch.cuda.get_device_properties(gpu).uuid}" for gpu in range(num_ranks)]
    links = read_links(uuids, pynvml)
    return index if links is None else gpus_by_rank(links, tp_size)[index]
