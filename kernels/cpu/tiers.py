"""The instruction sets that the CPU library is compiled for, and those of this machine."""

import dataclasses
import os
import platform
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Tier:
    """What an instruction set needs of the processor, and of the compiler."""

    machine: str
    """As `uname -m` names the architecture."""
    processor_flags: frozenset[str]
    """As the kernel names them; it leaves out those whose registers it does not save."""
    compiler_flags: tuple[str, ...]


def _x86(base: Tier | None, processor_flags: str, compiler_flags: str) -> Tier:
    known = base or Tier("x86_64", frozenset(), ())
    return Tier(
        known.machine,
        known.processor_flags | frozenset(processor_flags.split()),
        (*known.compiler_flags, *compiler_flags.split()),
    )


_AVX2 = _x86(None, "avx2 fma f16c", "-mavx2 -mfma -mf16c")
_AVX512 = _x86(
    _AVX2,
    "avx512f avx512bw avx512dq avx512vl",
    "-mavx512f -mavx512bw -mavx512dq -mavx512vl",
)
_VNNI = _x86(_AVX512, "avx512_vnni", "-mavx512vnni")


def _arm(processor_flags: str, architecture: str) -> Tier:
    return Tier("aarch64", frozenset(processor_flags.split()), (f"-march={architecture}",))


TIERS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_vnni": _VNNI,
    "avx512_bf16": _x86(_VNNI, "avx512_bf16", "-mavx512bf16"),
    "neon": _arm("asimd", "armv8-a"),
    "neon_dotprod": _arm("asimd asimddp", "armv8.2-a+dotprod"),
    "neon_bf16": _arm("asimd asimddp bf16 i8mm", "armv8.2-a+dotprod+bf16+i8mm"),
}
"""By name, from the least to the most capable of each architecture."""


def architecture_tiers(machine: str | None = None) -> tuple[str, ...]:
    """Those of an architecture as `uname -m` names it, by default this machine's, the most capable
    last."""
    machine = machine or platform.machine()
    return tuple(name for name, tier in TIERS.items() if tier.machine == machine)


def machine_tiers(
    cpuinfo: Path = Path("/proc/cpuinfo"), machine: str | None = None
) -> tuple[str, ...]:
    """Those that this machine can run, the most capable last."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ()
    # "flags" on x86, "Features" on Arm.
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    have = frozenset(next(flags, "").split())
    return tuple(
        name for name in architecture_tiers(machine) if TIERS[name].processor_flags <= have
    )


def choose_tier() -> str | None:
    """What `PAGELET_CPU_TIER` asks for, or else the machine's most capable tier; None if it has
    none. Raises ValueError if the machine lacks what is asked for."""
    tiers = machine_tiers()
    asked = os.environ.get("PAGELET_CPU_TIER")
    if asked and asked not in tiers:
        raise ValueError(
            f"PAGELET_CPU_TIER={asked}: this machine runs {', '.join(tiers) or 'none of the tiers'}"
        )
    return asked or (tiers[-1] if tiers else None)
