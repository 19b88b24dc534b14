"""The GPUs that kernels are compiled for, and what their launch settings are chosen by.

Settings come from tables by architecture and shape and never from a trial at run time, which would
fall on some request's latency and differ from replica to replica.
"""

import dataclasses
from typing import Literal

import torch


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One generation of GPUs, as Triton's `GPUTarget` names it."""

    name: str
    backend: Literal["cuda", "hip"]
    arch: int | str
    warp_size: int
    shared_bytes: int
    """The most shared memory (LDS) that a thread block may have."""
    processors: int
    """Streaming multiprocessors (compute units) of its large model: how many programs fill it."""

    @property
    def is_nvidia(self) -> bool:
        return self.backend == "cuda"


_KIB = 1024
# Shared memory a block: CUDA C++ Programming Guide, technical specifications by compute capability;
# AMD CDNA ISA documents (64 KiB of LDS).
ARCHITECTURES = {
    entry.name: entry
    for entry in (
        Architecture("sm_80", "cuda", 80, 32, 163 * _KIB, 108),  # A100
        Architecture("sm_89", "cuda", 89, 32, 99 * _KIB, 142),  # L4, L40S, RTX 40
        Architecture("sm_90", "cuda", 90, 32, 227 * _KIB, 132),  # H100, H200
        Architecture("sm_100", "cuda", 100, 32, 227 * _KIB, 148),  # B200
        Architecture("sm_120", "cuda", 120, 32, 99 * _KIB, 170),  # RTX 50
        Architecture("gfx90a", "hip", "gfx90a", 64, 64 * _KIB, 104),  # MI200
        Architecture("gfx942", "hip", "gfx942", 64, 64 * _KIB, 304),  # MI300
    )
}


def of_device(device: torch.device) -> Architecture:
    """The entry of a GPU: its own, or the last one before it (sm_86 has sm_80's settings), with the
    processors and the shared memory that this GPU has: sm_86 has 99 KiB of sm_80's 163.

    Raises RuntimeError for a GPU that is older than all entries.
    """
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        name = properties.gcnArchName.split(":")[0]
        if name in ARCHITECTURES:
            return _limited(ARCHITECTURES[name], properties.multi_processor_count, None)
        raise RuntimeError(f"{properties.name} ({name}) is none of: {', '.join(ARCHITECTURES)}")
    return _limited(
        _of_capability(properties.major, properties.minor, properties.name),
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
    )


def _limited(entry: Architecture, processors: int, shared_bytes: int | None) -> Architecture:
    """An entry with what one of its GPUs has, of shared memory at most as much as the entry."""
    most = min(entry.shared_bytes, shared_bytes or entry.shared_bytes)
    return dataclasses.replace(entry, processors=processors, shared_bytes=most)


def _of_capability(major: int, minor: int, gpu: str) -> Architecture:
    capability = 10 * major + minor
    older = [
        entry
        for entry in ARCHITECTURES.values()
        if isinstance(entry.arch, int) and entry.arch <= capability
    ]
    if not older:
        raise RuntimeError(
            f"{gpu} has compute capability {major}.{minor}; the kernels need 8.0 or later"
        )
    return max(older, key=lambda entry: int(entry.arch))
