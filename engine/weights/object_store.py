"""Models in S3, or what speaks its protocol: `s3://BUCKET/FOLDER` or `s3://BUCKET/PATH/FILE.gguf`.

Files are kept under `PAGELET_MODELS` (default: the cache folder), each in its place only once it is
whole and its content has the digest that its ETag tells. Credentials, region and endpoint are those
of the AWS tools' environment variables.
"""

import concurrent.futures
import contextlib
import fcntl
import fnmatch
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from pagelet.engine.weights.hub import TEXT_FILES, WEIGHT_FILES
from pagelet.engine.weights.package import cache_folder
from pagelet.protocol.errors import ModelSourceError
from pagelet.protocol.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from pagelet.protocol.model_folder import s3_folder

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

_SOURCE: Final = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]+)/(?P<path>[^@]*[^@/])/?")
_AT_ONCE: Final = 4
_CHUNK_BYTES: Final = 8 << 20
_KNOWN: Final = ".pagelet-etags.json"
_PART_MEBIBYTES: Final = (5, 6, 8, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 256, 512, 1024)
"""Sizes of the parts that usual tools upload in; the ETag of such an upload depends on it."""
_OPTIONS: Final[dict[str, Any]] = {
    "client_options": {"connect_timeout": "5 seconds", "timeout": "1 hour"},
    "retry_config": {"max_retries": 5},
}
_SIGN_IN: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of an account that may read it (in an "
    "InferenceService: model.credentialsSecret), or for a public bucket AWS_SKIP_SIGNATURE=true "
    "(model.s3.anonymous)"
)
_log = logging.getLogger("pagelet.engine.weights")

Progress = Callable[[int, int], None]


def download(source: str, progress: Progress | None, *, weights: bool) -> tuple[Path, str]:
    """The folder (or GGUF file) of a source, downloaded where it is not complete, and its name.
    After an interruption it goes on where it stopped.

    `progress` gets bytes done and bytes in all. Raises ModelSourceError.
    """
    target = _download(
        source, lambda store, path: _objects(store, path, source, weights=weights), progress
    )
    return target, target.stem if target.suffix == ".gguf" else target.name


def download_adapter(source: str, progress: Progress | None) -> Path:
    """As `download`, for the two files of a LoRA adapter."""
    return _download(source, lambda store, path: _adapter(store, path, source), progress)


def _download(
    source: str,
    choose: "Callable[[S3Store, str], list[ObjectMeta]]",
    progress: Progress | None,
) -> Path:
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise ModelSourceError(f"{source}: expected s3://BUCKET/FOLDER or s3://BUCKET/FILE.gguf")
    if {"", ".", ".."} & {*match["path"].split("/")}:  # it would lie elsewhere on this machine
        raise ModelSourceError(f"{source}: its path must have no part that is empty, . or ..")
    try:
        import obstore  # noqa: F401
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError as error:
        raise ModelSourceError(
            f"{source}: models in S3 need the package obstore: pip install 'pagelet[s3]'"
        ) from error
    path = match["path"]
    target = Path(os.environ.get("PAGELET_MODELS") or cache_folder() / "models", s3_folder(source))
    folder = target.parent if target.suffix == ".gguf" else target
    try:
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        options = _OPTIONS["client_options"] | {"allow_http": plain}
        store = S3Store(match["bucket"], **_OPTIONS | {"client_options": options})
        objects = choose(store, path)
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder):
            _fetch_all(store, objects, folder, progress)
    except (BaseError, FileNotFoundError) as error:
        raise _explained(error, source) from error
    except OSError as error:
        raise ModelSourceError(f"{source}: cannot be written to {folder}: {error}") from error
    return target


def _adapter(store: "S3Store", path: str, source: str) -> list["ObjectMeta"]:
    import obstore

    listed = obstore.list_with_delimiter(store, prefix=path)["objects"]
    wanted = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    chosen = [found for found in listed if PurePosixPath(found["path"]).name in wanted]
    if len(chosen) < len(wanted):
        raise ModelSourceError(
            f"{source}: the bucket has no {' and '.join(wanted)} there; write the folder that "
            "holds them"
        )
    return chosen


def _objects(store: "S3Store", path: str, source: str, *, weights: bool) -> list["ObjectMeta"]:
    import obstore

    if path.endswith(".gguf"):
        return [obstore.head(store, path)]
    listed = obstore.list_with_delimiter(store, prefix=path)["objects"]
    names = {PurePosixPath(found["path"]).name: found for found in listed}
    patterns = [*TEXT_FILES, *(WEIGHT_FILES if weights else [])]
    chosen = [
        found
        for name, found in names.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        and not name.startswith("consolidated")
    ]
    pooling = obstore.list_with_delimiter(store, prefix=f"{path}/1_Pooling")["objects"]
    chosen += [found for found in pooling if found["path"].endswith("/1_Pooling/config.json")]
    if any(name.endswith(".safetensors") for name in names) or (chosen and not weights):
        return chosen
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if ggufs:
        raise ModelSourceError(
            f"{source}: has GGUF files; give one of them: s3://.../{path}/{ggufs[0]}"
        )
    raise ModelSourceError(
        f"{source}: the bucket has no .safetensors files there; write the folder that holds them"
    )


def _fetch_all(
    store: "S3Store", objects: list["ObjectMeta"], folder: Path, progress: Progress | None
) -> None:
    known = _read_known(folder)
    total, done, lock = sum(found["size"] for found in objects), 0, threading.Lock()
    stop = threading.Event()

    def count(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            if progress is not None:
                progress(done, total)

    def fetch(found: "ObjectMeta") -> None:
        name = _name_in(folder, found)
        file, etag = folder / name, found["e_tag"] or ""
        state = [found["size"], etag]
        if known.get(name) == state and file.is_file() and file.stat().st_size == found["size"]:
            count(found["size"])
            return
        file.parent.mkdir(exist_ok=True)
        _fetch_whole(store, found, file, count, stop)
        with lock:
            known[name] = state
            (folder / _KNOWN).write_text(json.dumps(known))

    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads:
        try:
            for each in [threads.submit(fetch, found) for found in objects]:
                each.result()
        except BaseException:
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise


def _fetch_whole(
    store: "S3Store",
    found: "ObjectMeta",
    file: Path,
    count: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Has a file in its place with the content that its ETag tells."""
    etag = (found["e_tag"] or "").strip('"')
    part = file.with_name(f".{file.name}.{re.sub('[^0-9A-Za-z-]', '', etag)}.part")
    digests = []
    for _ in range(2):
        _append(store, found, part, count, stop)
        if part.stat().st_size == found["size"] and _has_etag(part, etag):
            break
        digests.append(_md5(part))
        if len(set(digests)) < len(digests) and part.stat().st_size == found["size"]:
            # Twice the same: what the store encrypts with keys of its own has other ETags.
            _log.warning("%s: its ETag is no digest of it; its size is right", found["path"])
            break
        part.unlink()
        count(-found["size"])
    else:
        raise ModelSourceError(
            f"{found['path']}: came twice with another content than its ETag says; check the disk, "
            "and the proxy if there is one"
        )
    part.replace(file)


def _append(
    store: "S3Store",
    found: "ObjectMeta",
    part: Path,
    count: Callable[[int], None],
    stop: threading.Event,
) -> None:
    """Downloads what is missing of a file."""
    import obstore

    there = part.stat().st_size if part.is_file() else 0
    count(there)
    if there >= found["size"]:
        part.touch()
        return
    wanted = {"if_match": found["e_tag"], "range": {"offset": there}} if found["size"] else {}
    with part.open("ab") as output:
        answer = obstore.get(store, found["path"], options=wanted)  # type: ignore[arg-type]
        for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
            output.write(chunk)
            count(len(chunk))
            if stop.is_set():
                raise ModelSourceError(f"{found['path']}: given up, as another file failed")


def _has_etag(file: Path, etag: str) -> bool:
    """Whether a file's content is what an ETag tells, as far as that can be told: an upload in
    parts of an unknown size has an ETag that tells nothing."""
    digest, _, parts = etag.partition("-")
    if not re.fullmatch("[0-9a-f]{32}", digest):
        return True
    if not parts:
        return _md5(file) == digest
    size = file.stat().st_size
    sizes = [mib << 20 for mib in _PART_MEBIBYTES if -(-size // (mib << 20)) == int(parts)]
    return not sizes or any(_md5_of_parts(file, length) == digest for length in sizes)


def _md5(file: Path) -> str:
    with file.open("rb") as data:
        return str(hashlib.file_digest(data, _new_md5).hexdigest())


def _md5_of_parts(file: Path, length: int) -> str:
    whole = _new_md5()
    with file.open("rb") as data:
        left = file.stat().st_size
        while left > 0:
            part, wanted = _new_md5(), min(left, length)
            left -= wanted
            while wanted > 0:
                block = data.read(min(wanted, _CHUNK_BYTES))
                part.update(block)
                wanted -= len(block)
            whole.update(part.digest())
    return str(whole.hexdigest())


def _new_md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """While this runs, no other process downloads to the folder: replicas may share it."""
    with (folder / ".pagelet-lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _name_in(folder: Path, found: "ObjectMeta") -> str:
    path = PurePosixPath(found["path"])
    return f"1_Pooling/{path.name}" if path.parent.name == "1_Pooling" else path.name


def _read_known(folder: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads((folder / _KNOWN).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _explained(error: Exception, source: str) -> ModelSourceError:
    from obstore import exceptions

    text = str(error)
    # Of a list, all that the store says is a generic error.
    absent = isinstance(error, exceptions.NotFoundError | FileNotFoundError)
    if absent or "404 Not Found" in text:
        return ModelSourceError(f"{source}: the store has no such bucket or file")
    refused = isinstance(error, exceptions.UnauthenticatedError | exceptions.PermissionDeniedError)
    if refused or "403 Forbidden" in text or "401 Unauthorized" in text:
        return ModelSourceError(f"{source}: the store refuses to give it: {_SIGN_IN}")
    if "credential" in text.lower() or "169.254." in text:
        return ModelSourceError(f"{source}: there are no credentials here: {_SIGN_IN}")
    if isinstance(error, exceptions.PreconditionError):
        return ModelSourceError(f"{source}: was changed while it was downloaded; start again")
    first = text.strip().splitlines()[0][:300] if text.strip() else type(error).__name__
    return ModelSourceError(
        f"{source}: cannot be downloaded: {first}; see AWS_ENDPOINT_URL and AWS_REGION"
    )
