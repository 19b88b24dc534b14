"""The processor: its instructions, and how much of it this process may use."""

import os
import platform
from pathlib import Path

from pagelet.agent.doctor.checks import Finding

_INTERESTING = (
    *("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)
_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
_INT8 = ("avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
_WIDE = ("avx2", "avx512f", "asimd")


def check_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> Finding:
    """Which vector instructions there are, and which dtype they mean on a CPU."""
    try:
        flags = _flags(cpuinfo.read_text())
    except OSError:
        return Finding(
            name="CPU",
            status="absent",
            summary=f"{platform.machine()}; its instructions are not known on this system",
        )
    found = [flag for flag in _INTERESTING if flag in flags]
    has_bfloat16 = any(flag in flags for flag in _BFLOAT16)
    dtype = "bfloat16" if has_bfloat16 else "float32"
    facts: dict[str, object] = {
        "machine": platform.machine(),
        "instructions": found,
        "bfloat16": has_bfloat16,
        "int8_dot": any(flag in flags for flag in _INT8),
        "auto_dtype": dtype,
    }
    if not any(flag in flags for flag in _WIDE):
        return Finding(
            name="CPU",
            status="warn",
            summary=f"{platform.machine()} without AVX2 or NEON",
            facts=facts,
            advice="expect a few tokens a second at most; use a newer processor or a GPU",
        )
    why = "it multiplies bfloat16" if has_bfloat16 else "it has no bfloat16 instructions"
    return Finding(
        name="CPU",
        status="ok",
        summary=f"{platform.machine()} with {', '.join(found)}; "
        f"--dtype auto runs bfloat16 checkpoints in {dtype}, as {why}",
        facts=facts,
    )


def check_cores(
    root: Path = Path("/sys/fs/cgroup"), proc_cgroup: Path = Path("/proc/self/cgroup")
) -> Finding:
    """How many cores this process may run on, and how much of them its cgroup lets it use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = allowed or 1
    quota = _cpu_quota(root, proc_cgroup)
    facts: dict[str, object] = {"cores": cores, "cgroup_quota": quota}
    if quota is None or quota >= cores:
        return Finding(name="cores", status="ok", summary=f"{cores}, no lower limit", facts=facts)
    summary = f"{cores}, but the cgroup allows the time of {quota:g}"
    if quota < 1:
        return Finding(
            name="cores",
            status="warn",
            summary=summary,
            facts=facts,
            advice="the kernel will pause every process for parts of each 0.1 s; "
            "raise the CPU limit to at least 2",
        )
    if cores >= 2 * quota and "OMP_NUM_THREADS" not in os.environ:
        return Finding(
            name="cores",
            status="warn",
            summary=summary,
            facts=facts,
            advice=f"set OMP_NUM_THREADS={int(quota)}: threads beyond the limit only cost time",
        )
    return Finding(name="cores", status="ok", summary=summary, facts=facts)


def _flags(cpuinfo: str) -> frozenset[str]:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _cpu_quota(root: Path, proc_cgroup: Path) -> float | None:
    """Cores' worth of time that the tightest cgroup above this process allows (v2 or v1)."""
    try:
        lines = [line.split(":", 2) for line in proc_cgroup.read_text().splitlines()]
    except OSError:
        return None
    quotas = []
    for _, controllers, path in lines:
        if controllers == "":
            base, read = root, _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = root / "cpu", _quota_v1
        else:
            continue
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents):
            quotas.append(read(folder))
            if folder == base:
                break
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
