"""Takes the GPU's libraries out of an installed torch, for an image that serves on CPUs.

Package indexes that have only torch's CUDA build install 3.4 GB of NVIDIA's libraries and Triton
with it. torch's own libraries are linked to them, so it cannot start without files of their names;
each large one is replaced by a library that defines the functions which torch refers to, and traps
if one is ever called. Nothing calls them where there is no GPU: torch sees none, as CUDA's small
runtime library, which finds out, stays. With torch's CPU build there is nothing to do.

    python3 drop_cuda.py SITE_PACKAGES
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

SMALL_BYTES = 8 << 20
"""Libraries up to this size stay as they are."""


def symbols(library: Path, kind: str) -> dict[str, str]:
    """Dynamic symbols that a library defines, or that it wants others to define: name to version,
    which is empty for a symbol without one."""
    command = ["nm", "--dynamic", f"--{kind}-only", "--format=posix", str(library)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    parts = (re.split("@+", line.split()[0]) for line in listing.splitlines())
    return {name: version[0] if version else "" for name, *version in parts}


def needed(library: Path) -> set[str]:
    """File names of the libraries that one is linked to."""
    command = ["readelf", "--dynamic", str(library)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", listing))


def write_stand_in(target: Path, versions: dict[str, str]) -> None:
    """A library that defines the given symbols as functions that trap."""
    code = "".join(f".globl {name}\n.type {name}, @function\n{name}:\n" for name in versions)
    assembly = f".text\n{code}\n.byte 0x0f, 0x0b\n.section .note.GNU-stack\n"
    script = target.with_suffix(".versions")
    nodes = {*versions.values()} - {""}
    script.write_text("".join(f"{node} {{ *; }};\n" for node in nodes) or "{ *; };\n")
    link = f"-Wl,-soname,{target.name},--version-script,{script}"
    command = ["gcc", "-shared", "-nostdlib", link, "-o", str(target), "-x", "assembler", "-"]
    subprocess.run(command, check=True, input=assembly, text=True)
    script.unlink()


def main() -> None:
    """Works on the site-packages folder that the command line names."""
    site = Path(sys.argv[1])
    own = site / "torch" / "lib"
    torch_libraries = list(own.glob("*.so"))
    installed = {path.name: path for path in (site / "nvidia").rglob("*.so.*")}
    wanted = set[str]().union(*(symbols(library, "undefined") for library in torch_libraries))
    for name in sorted(set[str]().union(*(needed(library) for library in torch_libraries))):
        if (library := installed.get(name)) is None:
            continue
        if library.stat().st_size <= SMALL_BYTES:
            shutil.copy2(library, own / name)
        else:
            defined = symbols(library, "defined")
            write_stand_in(own / name, {name: defined[name] for name in defined.keys() & wanted})
    for folder in ("nvidia", "triton", "torch/include", "torch/test"):
        shutil.rmtree(site / folder, ignore_errors=True)


if __name__ == "__main__":
    main()
