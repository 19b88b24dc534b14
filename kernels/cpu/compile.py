"""Compiles the CPU library from its sources with the compiler that is there.

The result is kept under a name made of the sources, the flags and the compiler's version, so that
a change of any of them compiles anew, and processes that start together compile once.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # what is fused is written so: the same in every shape of tile
    "-fno-math-errno",
    "-fno-trapping-math",
    "-pthread",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_TIERS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_vnni": (*_AVX512, "-mavx512vnni"),
    "avx512_bf16": (*_AVX512, "-mavx512vnni", "-mavx512bf16"),
}


class CompileError(RuntimeError):
    """The library cannot be built here; the message says why."""


def find_compiler() -> str:
    """The C++ compiler: `CXX`, or the first of the usual names."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "c++", "clang++")):
        if path := shutil.which(name):
            return path
    raise CompileError("no C++ compiler found; install g++, or set CXX to one")


def sources() -> list[Path]:
    """All files that the library is made of."""
    return sorted([*KERNELS.glob("*/*.cpp"), *KERNELS.glob("*/*.h")])


def compile_library() -> Path:
    """Builds the library unless it is there, and returns its path.

    Raises CompileError if there is no compiler, or it fails (with what it said).
    """
    compiler = find_compiler()
    name = f"{_digest(compiler)}.so"
    if (found := _find(name)) is not None:
        return found
    writable = [folder for folder in _folders() if _is_writable(folder)]
    if not writable:
        raise CompileError(f"none of {', '.join(map(str, _folders()))} can be written to")
    folder = writable[0]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        library = folder / name
        if not library.is_file():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                built = _build(compiler, Path(work))
                built.replace(library)
    return library


def is_compiled() -> bool:
    """Whether `compile_library` has nothing to do: the library is there, or cannot be built."""
    try:
        compiler = find_compiler()
    except CompileError:
        return True
    return _find(f"{_digest(compiler)}.so") is not None


def _find(name: str) -> Path | None:
    return next((folder / name for folder in _folders() if (folder / name).is_file()), None)


def _folders() -> list[Path]:
    """Where libraries are kept: beside the sources, or where those cannot be written, the user's
    cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [KERNELS / "cpu" / "build", cache / "pagelet"]


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _digest(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(version + repr((_FLAGS, _TIERS)).encode())
    for path in sources():
        digest.update(path.relative_to(KERNELS).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: str, work: Path) -> Path:
    source = KERNELS / "cpu"
    units: list[tuple[str, str, tuple[str, ...]]] = [
        ("interface", "interface.cpp", ()),
        ("pack", "../linear/pack.cpp", _AVX2),
        ("probe", "probe.cpp", ()),
        ("threads", "threads.cpp", ()),
    ]
    for tier, flags in _TIERS.items():
        units.append((tier, "tier.cpp", (*flags, f"-DPAGELET_TIER={tier}")))
    commands = [
        [compiler, *_FLAGS, *flags, "-c", str(source / file), "-o", f"{name}.o"]
        for name, file, flags in units
    ]
    _run_all(commands, work)
    _run_all(
        [[compiler, "-shared", "-pthread", "-o", "library.so", *map(str, work.glob("*.o"))]], work
    )
    return work / "library.so"


def _run_all(commands: list[list[str]], work: Path) -> None:
    """Runs the commands at once; each is a few seconds of one core."""
    processes = [
        subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for command in commands
    ]
    outputs = [process.communicate()[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        if process.returncode:
            raise CompileError(
                f"{process.args!r} failed with {process.returncode}:\n"
                + output.decode(errors="replace")[-4000:]
            )
