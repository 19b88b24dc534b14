"""The CPU library in this process: compiled if need be, loaded once, its tier and threads chosen.

`PAGELET_CPU_TIER` asks for a lower tier than the machine's best (avx2, avx512, avx512_vnni,
avx512_bf16; neon, neon_dotprod, neon_bf16), for tests and for equal results on unequal machines.
"""

import ctypes
import dataclasses
import functools
from pathlib import Path

from pagelet.kernels.cpu.compile import CompileError, compile_library, is_compiled
from pagelet.kernels.cpu.cores import usable_cores
from pagelet.kernels.cpu.tiers import choose_tier, machine_tiers


class UnavailableError(RuntimeError):
    """The CPU library cannot be used here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Status:
    """What runs on this CPU."""

    tier: str | None
    """The instruction set in use; None where the library is unavailable."""
    tiers: tuple[str, ...]
    """Those that this machine can run, the most capable last."""
    threads: int
    path: Path | None
    reason: str | None
    """Why the library is unavailable."""


class Call(ctypes.Structure):
    """One operation with its arguments (`pagelet_call`)."""

    _fields_ = (("op", ctypes.c_int64), ("args", ctypes.c_void_p))


NUM_SIZES = 4
Sizes = ctypes.c_int64 * NUM_SIZES


class Library:
    """The loaded library. Operations run on the calling thread and the pool's workers."""

    def __init__(self, tier: str) -> None:
        """Compiles it first, if need be."""
        self.tiers = machine_tiers()
        self._loaded: dict[str, ctypes.CDLL] = {}
        self.threads = usable_cores()
        self.use_tier(tier)

    def use_tier(self, name: str) -> None:
        """Computes with that instruction set from now on; not while an operation runs.

        Raises ValueError if this machine cannot.
        """
        if name not in self.tiers:
            raise ValueError(f"tier {name}: this machine runs {', '.join(self.tiers)}")
        if name not in self._loaded:
            self._loaded[name] = _declare(ctypes.CDLL(str(compile_library(name))))
        self.tier, self.handle = name, self._loaded[name]
        self.path = Path(self.handle._name)
        self.set_threads(self.threads)

    def run(self, calls: "ctypes.Array[Call]", count: int, sizes: object) -> None:
        """Runs operations one after another; `sizes` points to `Sizes`."""
        self.handle.pagelet_cpu_run(calls, count, sizes)

    def set_threads(self, threads: int) -> None:
        """How many threads work on an operation, the caller's included."""
        self.threads = threads
        self.handle.pagelet_cpu_set_threads(threads)

    def read(self, address: int, size: int) -> None:
        """Reads memory on all threads: how fast weights can come at best. Whole 256 KiB only."""
        self.handle.pagelet_cpu_read(address, size)


def _declare(handle: ctypes.CDLL) -> ctypes.CDLL:
    handle.pagelet_cpu_set_threads.argtypes = [ctypes.c_int]
    handle.pagelet_cpu_set_threads.restype = None
    handle.pagelet_cpu_run.argtypes = [ctypes.POINTER(Call), ctypes.c_int64, ctypes.POINTER(Sizes)]
    handle.pagelet_cpu_run.restype = None
    handle.pagelet_cpu_read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    handle.pagelet_cpu_read.restype = ctypes.c_uint64
    return handle


@functools.cache
def _load() -> Library | str:
    """The library, or why there is none."""
    tier = choose_tier()
    if tier is None:
        return "this is neither an x86-64 CPU with AVX2, FMA and F16C nor an AArch64 one"
    try:
        return Library(tier)
    except (CompileError, UnavailableError, OSError) as error:
        return str(error)


def library() -> Library:
    """The library; compiled and loaded at the first call.

    Raises UnavailableError where it cannot be, and ValueError if `PAGELET_CPU_TIER` names a tier
    that this machine cannot run.
    """
    loaded = _load()
    if isinstance(loaded, str):
        raise UnavailableError(loaded)
    return loaded


def needs_compiling() -> bool:
    """Whether the first call of `library` in this process will have to compile it."""
    tier = choose_tier()
    return tier is not None and not is_compiled(tier)


def status() -> Status:
    """What `library()` would give, without raising for a machine that has none."""
    loaded = _load()
    if isinstance(loaded, str):
        return Status(None, (), 0, None, loaded)
    return Status(loaded.tier, loaded.tiers, loaded.threads, loaded.path, None)
