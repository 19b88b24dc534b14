"""The CPU library in this process: compiled if need be, loaded once, its tier and threads chosen.

`PAGELET_CPU_TIER` asks for a lower tier than the machine's best (avx2, avx512, avx512_vnni,
avx512_bf16), for tests and for equal results on unequal machines.
"""

import ctypes
import dataclasses
import functools
import itertools
import os
from pathlib import Path

from pagelet.kernels.cpu.compile import CompileError, compile_library, is_compiled
from pagelet.kernels.cpu.cores import usable_cores


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

    def __init__(self, path: Path) -> None:
        self.path = path
        library = self.handle = ctypes.CDLL(str(path))
        tier_name = library.pagelet_cpu_tier
        tier_name.argtypes, tier_name.restype = [ctypes.c_int], ctypes.c_char_p
        self._use_tier = library.pagelet_cpu_use_tier
        self._use_tier.argtypes, self._use_tier.restype = [ctypes.c_char_p], ctypes.c_bool
        self._set_threads = library.pagelet_cpu_set_threads
        self._set_threads.argtypes, self._set_threads.restype = [ctypes.c_int], None
        self.run = library.pagelet_cpu_run
        self.run.argtypes = [ctypes.POINTER(Call), ctypes.c_int64, ctypes.POINTER(Sizes)]
        self.run.restype = None
        self._read = library.pagelet_cpu_read
        self._read.argtypes, self._read.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_uint64

        names = itertools.takewhile(bool, map(tier_name, itertools.count()))
        self.tiers = tuple(name.decode() for name in names)
        if not self.tiers:
            raise UnavailableError("this CPU has no AVX2 with FMA and F16C")
        self.use_tier(os.environ.get("PAGELET_CPU_TIER") or self.tiers[-1])
        self.set_threads(usable_cores())

    def use_tier(self, name: str) -> None:
        """Computes with that instruction set from now on; not while an operation runs.

        Raises ValueError if this machine cannot.
        """
        if not self._use_tier(name.encode()):
            raise ValueError(f"PAGELET_CPU_TIER={name}: this machine runs {', '.join(self.tiers)}")
        self.tier = name

    def set_threads(self, threads: int) -> None:
        """How many threads work on an operation, the caller's included."""
        self.threads = threads
        self._set_threads(threads)

    def read(self, address: int, size: int) -> None:
        """Reads memory on all threads: how fast weights can come at best. Whole 256 KiB only."""
        self._read(address, size)


@functools.cache
def _load() -> Library | str:
    """The library, or why there is none."""
    try:
        return Library(compile_library())
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
    return not is_compiled()


def status() -> Status:
    """What `library()` would give, without raising for a machine that has none."""
    loaded = _load()
    if isinstance(loaded, str):
        return Status(None, (), 0, None, loaded)
    return Status(loaded.tier, loaded.tiers, loaded.threads, loaded.path, None)
