"""Memory: the machine's or the cgroup's, what the model's weights take of it, and /dev/shm."""

import importlib.metadata
import os
from pathlib import Path

from pagelet.agent.doctor.checks import Finding
from pagelet.process.host_memory import read_host_memory
from pagelet.protocol.sizes import format_bytes

_WEIGHT_SUFFIXES = (".safetensors", ".gguf")
_SHARED_MEMORY_BYTES = 1 << 30


def check_memory(model: str | None, *, on_cpu: bool, copies: int = 1, machines: int = 1) -> Finding:
    """Whether this machine's part of `copies` of the model's weights, which are divided evenly over
    `machines`, fits into what is free. `on_cpu` is whether they will lie in this memory; on a GPU
    they only pass through it."""
    memory = read_host_memory()
    weights = None if model is None else weight_bytes(model)
    if weights is not None:
        weights = weights * copies // machines
    facts: dict[str, object] = {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "weight_bytes": weights,
    }
    summary = f"{format_bytes(memory.available)} of {format_bytes(memory.total)} free"
    if weights is None:
        return Finding(name="memory", status="ok", summary=summary, facts=facts)
    summary += f", the model's files take {format_bytes(weights)}"
    if machines > 1:
        summary += f" on each of {machines} machines"
    if on_cpu and weights > memory.available:
        return Finding(
            name="memory",
            status="fail",
            summary=summary,
            facts=facts,
            advice=f"free {format_bytes(weights - memory.available)}, raise the memory limit by "
            "as much, or take a smaller model",
        )
    if on_cpu and weights > 0.8 * memory.available:
        return Finding(
            name="memory",
            status="warn",
            summary=summary,
            facts=facts,
            advice="little is left for the KV cache",
        )
    return Finding(name="memory", status="ok", summary=summary, facts=facts)


def check_shared_memory(processes: int, folder: Path = Path("/dev/shm")) -> Finding:
    """Whether /dev/shm is large enough for `processes` workers to exchange tensors in it."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return Finding(name="shared memory", status="absent", summary=f"no {folder}")
    total, free = stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail
    small = processes > 1 and free < _SHARED_MEMORY_BYTES
    return Finding(
        name="shared memory",
        status="warn" if small else "ok",
        summary=f"{format_bytes(free)} of {format_bytes(total)} free in {folder}",
        facts={"total_bytes": total, "free_bytes": free},
        advice=f"{processes} workers exchange tensors in it: give the container "
        f"{format_bytes(_SHARED_MEMORY_BYTES)} (docker run --shm-size=1g; an emptyDir of medium "
        "Memory in a pod)"
        if small
        else "",
    )


def weight_bytes(model: str) -> int | None:
    """Size of a model's weight files, if they are on this machine already."""
    if model.startswith("package://"):
        name = model.removeprefix("package://").partition("/")[0]
        try:
            files = importlib.metadata.distribution(name).files or []
        except (importlib.metadata.PackageNotFoundError, ValueError):
            return None
        paths = [Path(str(file.locate())) for file in files]
    else:
        try:
            path = Path(model.removeprefix("file://")).expanduser()
            paths = [path] if path.is_file() else list(path.glob("*")) if path.is_dir() else []
        except (OSError, RuntimeError, ValueError):  # who reads the model says why
            return None
    sizes = [p.stat().st_size for p in paths if p.suffix in _WEIGHT_SUFFIXES and p.is_file()]
    return sum(sizes) or None
