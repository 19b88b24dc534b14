"""GPUs: what the driver says, and whether the installed torch fits it. Imports no torch."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from pagelet.agent.doctor.checks import Finding, Status
from pagelet.protocol.sizes import format_bytes

_LEAST_CAPABILITY = (8, 0)
"""Of the oldest architecture in `kernels/gpu/architectures.py`."""


def check_gpus(*, needed: int = 0) -> list[Finding]:
    """One finding for the driver, one for each GPU, one for NCCL. `needed` GPUs must be there."""
    driver = _read_driver()
    if isinstance(driver, str):
        return [_no_gpu(driver, needed)]
    build = torch_cuda_build()
    findings = [check_driver(driver["driver"], driver["cuda"], build)]
    findings += [check_gpu(index, **gpu) for index, gpu in enumerate(driver["gpus"])]
    if 0 < len(driver["gpus"]) < needed:
        findings.append(
            Finding(
                name="GPUs",
                status="fail",
                summary=f"{len(driver['gpus'])} here, {needed} needed",
                advice="lower --tensor-parallel-size, --pipeline-parallel-size or "
                "--data-parallel-size",
            )
        )
    return [*findings, check_triton(), check_nccl()]


def check_driver(driver: str, cuda: tuple[int, int], build: tuple[int, int] | None) -> Finding:
    """Whether a driver that supports CUDA up to `cuda` runs torch's `build` for CUDA.

    A driver runs every minor version of its own major version of CUDA and all earlier ones.
    """
    facts: dict[str, object] = {
        "driver": driver,
        "cuda": _dotted(cuda),
        "torch_cuda": None if build is None else _dotted(build),
    }
    summary = f"{driver}, for CUDA up to {_dotted(cuda)}"
    if build is None:
        return Finding(
            name="NVIDIA driver",
            status="fail",
            summary=f"{summary}; torch is a build without CUDA",
            facts=facts,
            advice="install torch's CUDA build, or give --device cpu",
        )
    summary += f"; torch is built for CUDA {_dotted(build)}"
    if cuda[0] < build[0]:
        return Finding(
            name="NVIDIA driver",
            status="fail",
            summary=summary,
            facts=facts,
            advice=f"install a driver for CUDA {build[0]}, or a torch built for CUDA {cuda[0]}",
        )
    if cuda[0] == build[0] and cuda < build:
        return Finding(
            name="NVIDIA driver",
            status="warn",
            summary=summary,
            facts=facts,
            advice="it runs by minor version compatibility, but code compiled at run time may not "
            f"load; a driver for CUDA {_dotted(build)} is safe",
        )
    return Finding(name="NVIDIA driver", status="ok", summary=summary, facts=facts)


def check_gpu(
    index: int,
    *,
    name: str,
    capability: tuple[int, int],
    total: int,
    free: int,
    users: dict[int, int | None],
) -> Finding:
    """Whether the kernels run on a GPU, and how much of its memory is free. `users` are the bytes
    that processes use, by pid; None where the driver does not tell."""
    facts: dict[str, object] = {
        "model": name,
        "compute_capability": _dotted(capability),
        "total_bytes": total,
        "free_bytes": free,
        "used_by_pid": {str(pid): used for pid, used in users.items()},
    }
    summary = (
        f"{name}, compute capability {_dotted(capability)}, "
        f"{format_bytes(free)} of {format_bytes(total)} free"
    )
    if users:
        uses = (
            f"process {pid}" + ("" if used is None else f" uses {format_bytes(used)}")
            for pid, used in users.items()
        )
        summary += f" ({', '.join(uses)})"
    status: Status = "ok"
    advice = ""
    if capability < _LEAST_CAPABILITY:
        status, advice = (
            "fail",
            f"a GPU of compute capability {_dotted(_LEAST_CAPABILITY)} is the least",
        )
    elif free < 0.9 * total:
        status = "warn"
        advice = (
            "others use it: the default --memory-utilization 0.9 will not fit; give "
            f"{int(95 * free / total) / 100:.2f} or less, or stop them"
        )
    return Finding(name=f"GPU {index}", status=status, summary=summary, facts=facts, advice=advice)


def check_triton() -> Finding:
    """What Triton needs when it is first used: it compiles the C module that launches kernels."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    missing = [] if compiler else ["no C compiler"]
    missing += [] if header.is_file() else [f"no {header}"]
    if not missing:
        return Finding(name="Triton", status="ok", summary=f"{compiler} and Python's headers")
    python = f"python{sysconfig.get_python_version()}"
    return Finding(
        name="Triton",
        status="warn",
        summary=f"{' and '.join(missing)}: kernels cannot be launched, unless its cache has them",
        advice=f"install gcc and {python}-dev (apt-get install gcc libc6-dev {python}-dev)",
    )


def check_nccl() -> Finding:
    """The NCCL that torch's CUDA build brings."""
    for distribution in importlib.metadata.distributions():
        name = distribution.name
        if name.startswith("nvidia-nccl"):
            return Finding(
                name="NCCL",
                status="ok",
                summary=f"{distribution.version} ({name})",
                facts={"version": distribution.version, "package": name},
            )
    return Finding(name="NCCL", status="absent", summary="not installed as a package")


def torch_cuda_build() -> tuple[int, int] | None:
    """The CUDA version that the installed torch is built for, read from its files: importing torch
    takes seconds. None for a build without CUDA, and without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b.*=\s*['\"](\d+)\.(\d+)", text, re.MULTILINE)
    return None if match is None else (int(match[1]), int(match[2]))


def _read_driver() -> dict[str, Any] | str:
    """What the driver says; or why there is none."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    try:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "cuda": (cuda // 1000, cuda % 1000 // 10),
            "gpus": [_read_gpu(pynvml, handle) for handle in handles],
        }
    except pynvml.NVMLError as error:
        return str(error)
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "capability": tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        "total": memory.total,
        "free": memory.free,
        "users": {process.pid: process.usedGpuMemory for process in processes},
    }


def _no_gpu(why: str, needed: int) -> Finding:
    if needed:
        return Finding(
            name="NVIDIA driver",
            status="fail",
            summary=f"none ({why}), but --device cuda needs one",
            advice="install the NVIDIA driver, give the container its GPUs, or --device cpu",
        )
    return Finding(
        name="NVIDIA driver", status="absent", summary=f"none ({why}); models run on CPU"
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
