"""Compiles the CPU library from its sources with the compiler that is there.

There is one library for each instruction set, so that a machine compiles what it runs and no more.
It is kept under a name made of the sources, the flags and the compiler's version, so that a change
of any of them compiles anew, and processes that start together compile once.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from pagelet.kernels.cpu.tiers import TIERS

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


def compile_library(tier: str) -> Path:
    """Builds the library of an instruction set unless it is there, and returns its path.

    Raises CompileError if there is no compiler, or it fails (with what it said).
    """
    try:
        compiler = find_compiler()
    except CompileError:
        # A container image holds the libraries and no compiler.
        if (found := _find(f"{tier}-{_sources_digest(tier)}-*.so")) is not None:
            return found
        raise
    name = _name(compiler, tier)
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
                built = _build(compiler, tier, Path(work))
                built.replace(library)
    return library


def is_compiled(tier: str) -> bool:
    """Whether `compile_library` has nothing to do: the library is there, or cannot be built."""
    try:
        compiler = find_compiler()
    except CompileError:
        return True
    return _find(_name(compiler, tier)) is not None


def _find(pattern: str) -> Path | None:
    return next((found for folder in _folders() for found in folder.glob(pattern)), None)


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


def _name(compiler: str, tier: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    return f"{tier}-{_sources_digest(tier)}-{hashlib.sha256(version).hexdigest()[:8]}.so"


def _sources_digest(tier: str) -> str:
    digest = hashlib.sha256(repr((_FLAGS, TIERS[tier].compiler_flags)).encode())
    for path in sources():
        digest.update(path.relative_to(KERNELS).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: str, tier: str, work: Path) -> Path:
    commands = []
    # The longest first: all run at once, on as many cores as there are.
    for path in sorted(KERNELS.glob("*/*.cpp"), key=lambda path: -path.stat().st_size):
        flags = (*_FLAGS, *TIERS[tier].compiler_flags, f"-DPAGELET_TIER={tier}")
        name = f"{path.parent.name}-{path.stem}.o"
        commands.append([compiler, *flags, "-c", str(path), "-o", name])
    _run_all(commands, work)
    objects = [command[-1] for command in commands]
    _run_all([[compiler, "-shared", "-pthread", "-o", "library.so", *objects]], work)
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
