"""Checks downloaded files against the digests that the hub gave for them.

The hub's client keeps each file under its etag: the SHA-256 of a large file, and Git's SHA-1 of a
small one. It compares sizes only, and a disk or a proxy can do worse than cut a file short.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pagelet.engine.source import ModelFiles, resolve, resolve_adapter
from pagelet.protocol.errors import ModelSourceError

_CHECKED: Final = ".pagelet-checked.json"
_READ_BYTES: Final = 1 << 22
_DIGEST_LENGTHS: Final = {40: "sha1", 64: "sha256"}

Progress = Callable[[int, int], None]


def fetch(
    source: str,
    progress: Progress | None = None,
    checking: Progress | None = None,
    *,
    weights: bool = True,
) -> ModelFiles:
    """As `resolve`, with every file of an `hf://` model checked; a damaged one is downloaded once
    more. What was checked before and has not changed since is not read again.

    `progress` and `checking` get bytes done and bytes in all. Raises ModelSourceError.
    """
    files = resolve(source, progress, weights=weights)
    if source.startswith("hf://") and _remove_damaged(files.path, checking):
        files = resolve(source, progress, weights=weights)
        _refuse_damaged(source, files.path, checking)
    return files


def fetch_adapter(
    source: str, progress: Progress | None = None, checking: Progress | None = None
) -> Path:
    """As `fetch`, for the folder of a LoRA adapter."""
    folder = resolve_adapter(source, progress)
    if source.startswith("hf://") and _remove_damaged(folder, checking):
        folder = resolve_adapter(source, progress)
        _refuse_damaged(source, folder, checking)
    return folder


def _remove_damaged(path: Path, checking: Progress | None) -> bool:
    """Whether there was anything to remove."""
    damaged = list(_damaged(path, checking))
    for file in damaged:
        file.resolve().unlink()
        file.unlink(missing_ok=True)
    return bool(damaged)


def _refuse_damaged(source: str, path: Path, checking: Progress | None) -> None:
    still = [file.name for file in _damaged(path, checking)]
    if still:
        raise ModelSourceError(
            f"{source}: {', '.join(still)} came twice with another content than its digest says; "
            "check the disk, and the proxy if there is one"
        )


def _damaged(path: Path, checking: Progress | None) -> Iterator[Path]:
    """Files whose content has not the digest that they are stored under. Notes what is sound."""
    folder = path if path.is_dir() else path.parent
    links = [path]
    if not path.is_file():
        # Links that lead nowhere are of files that nobody asked for, whose content is deleted.
        links = sorted(p for p in folder.iterdir() if p.is_symlink() and p.exists())
    known = _read_checked(folder)
    checked: dict[str, list[int]] = {}
    total, done = sum(link.stat().st_size for link in links), 0
    for link in links:
        blob = link.resolve()
        state = [blob.stat().st_size, blob.stat().st_mtime_ns]
        sound = known.get(link.name) == state
        if not sound and (algorithm := _DIGEST_LENGTHS.get(len(blob.name))):
            told = functools.partial(_tell, checking, done, total)
            sound = _digest(blob, algorithm, told) == blob.name
            if not sound:
                yield link
        done += state[0]
        if sound:
            checked[link.name] = state
    if checked != known:
        (folder / _CHECKED).write_text(json.dumps(known | checked))


def _digest(path: Path, algorithm: str, told: Callable[[int], None]) -> str:
    digest = hashlib.new(algorithm, usedforsecurity=algorithm != "sha1")
    if algorithm == "sha1":  # Git's digest begins with a header
        digest.update(b"blob %d\0" % path.stat().st_size)
    read = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
            read += len(block)
            told(read)
    return digest.hexdigest()


def _tell(progress: Progress | None, before: int, total: int, read: int) -> None:
    if progress is not None:
        progress(before + read, total)


def _read_checked(folder: Path) -> dict[str, list[int]]:
    try:
        content = json.loads((folder / _CHECKED).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
