"""Models in S3, from a real server."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import obstore
import pytest

from pagelet.engine.source import resolve, resolve_adapter
from pagelet.protocol.errors import ModelSourceError
from support.s3 import S3, running_s3

LARGE = bytes(range(256)) * (6 << 12)
"""6 MiB: two parts."""
FILES = {
    "models/tiny/config.json": b'{"model_type": "llama"}',
    "models/tiny/tokenizer.json": b"{}",
    "models/tiny/model.safetensors": LARGE,
    "models/tiny/pytorch_model.bin": b"not wanted",
    "models/tiny/original/model.safetensors": b"not wanted",
    "models/quantized/a.gguf": b"GGUF-a",
    "models/quantized/b.gguf": b"GGUF-b",
    "adapters/sql/adapter_config.json": b"{}",
    "adapters/sql/adapter_model.safetensors": b"A and B",
    "adapters/sql/optimizer.pt": b"not wanted",
    "adapters/pickled/adapter_config.json": b"{}",
}
WEIGHTS = "models/tiny/model.safetensors"


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with running_s3() as server:
        yield server


@pytest.fixture
def bucket(server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of each test's own."""
    for name, value in {**server.environment, "PAGELET_MODELS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid.uuid4().hex}"
    server.make_bucket(name, FILES)
    return name


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Files that were asked for, and from which byte on."""
    asked: list[tuple[str, int]] = []
    get = obstore.get

    def noted(store: Any, path: str, *, options: Mapping[str, Any]) -> Any:
        asked.append((path.split("/")[-1], options["range"]["offset"]))
        return get(store, path, options=options)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "get", noted)
    return asked


def store_of(bucket: str) -> Any:
    return obstore.store.S3Store(bucket, client_options={"allow_http": True})


def test_a_folder_is_downloaded_once(bucket: str, downloads: list[tuple[str, int]]) -> None:
    progress: list[tuple[int, int]] = []
    files = resolve(f"s3://{bucket}/models/tiny", lambda *told: progress.append(told))
    assert (files.name, files.format) == ("tiny", "safetensors")
    assert files.weight_files()[0].read_bytes() == LARGE
    names = {path.name for path in files.path.iterdir() if not path.name.startswith(".")}
    assert names == {"config.json", "tokenizer.json", "model.safetensors"}
    total = sum(len(FILES[f"models/tiny/{name}"]) for name in names)
    assert progress[-1] == (total, total)
    assert sorted(downloads) == sorted((name, 0) for name in names)
    downloads.clear()
    assert resolve(f"s3://{bucket}/models/tiny/").path == files.path
    assert downloads == []


def test_what_has_changed_is_downloaded_again(
    bucket: str, downloads: list[tuple[str, int]]
) -> None:
    files = resolve(f"s3://{bucket}/models/tiny")
    obstore.put(store_of(bucket), "models/tiny/config.json", b'{"model_type": "qwen2"}')
    (files.path / "tokenizer.json").unlink()
    downloads.clear()
    assert resolve(f"s3://{bucket}/models/tiny").config() == {"model_type": "qwen2"}
    assert sorted(downloads) == [("config.json", 0), ("tokenizer.json", 0)]


def test_a_download_goes_on_where_it_stopped(
    bucket: str, downloads: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = obstore.get

    class Cut:
        def __init__(self, answer: Any) -> None:
            self._answer = answer

        def stream(self, **_: Any) -> Iterator[bytes]:
            yield bytes(next(self._answer.stream(min_chunk_size=1 << 20)))[: 1 << 20]
            raise obstore.exceptions.GenericError("connection closed before message completed")

    def cut(store: Any, path: str, **options: Any) -> Any:
        answer = whole(store, path, **options)
        return Cut(answer) if path == WEIGHTS else answer

    monkeypatch.setattr(obstore, "get", cut)
    with pytest.raises(ModelSourceError, match="cannot be downloaded: connection closed"):
        resolve(f"s3://{bucket}/models/tiny")
    monkeypatch.setattr(obstore, "get", whole)
    files = resolve(f"s3://{bucket}/models/tiny")
    assert files.weight_files()[0].read_bytes() == LARGE
    assert [offset for name, offset in downloads if name == "model.safetensors"] == [0, 1 << 20]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_download_is_seen_and_made_anew(
    name: str, bucket: str, downloads: list[tuple[str, int]], tmp_path: Path
) -> None:
    """Its length alone does not tell: uploads in parts, too, have an ETag that is checked."""
    content = FILES[f"models/tiny/{name}"]
    etag = obstore.head(store_of(bucket), f"models/tiny/{name}")["e_tag"]
    assert etag is not None
    assert ("-2" in etag) == (name == "model.safetensors")
    folder = tmp_path / "s3" / bucket / "models/tiny"
    folder.mkdir(parents=True)
    label = etag.strip('"')
    (folder / f".{name}.{label}.part").write_bytes(b"x" + content[1:])
    files = resolve(f"s3://{bucket}/models/tiny")
    assert (files.path / name).read_bytes() == content
    assert (name, 0) in downloads


def test_one_gguf_file_is_named(bucket: str, downloads: list[tuple[str, int]]) -> None:
    files = resolve(f"s3://{bucket}/models/quantized/b.gguf")
    assert (files.path.read_bytes(), files.format, files.name) == (b"GGUF-b", "gguf", "b")
    assert downloads == [("b.gguf", 0)]
    with pytest.raises(ModelSourceError, match=r"give one of them: s3://.*/a\.gguf"):
        resolve(f"s3://{bucket}/models/quantized")


def test_without_weights_only_what_is_small_is_downloaded(
    bucket: str, downloads: list[tuple[str, int]]
) -> None:
    assert not resolve(f"s3://{bucket}/models/tiny", weights=False).has_weights()
    assert sorted(name for name, _ in downloads) == ["config.json", "tokenizer.json"]


def test_what_is_not_there_and_what_is_not_given_is_said(server: S3, bucket: str) -> None:
    for source, words in (
        (f"s3://{bucket}/nothing", "has no .safetensors files there"),
        (f"s3://{bucket}/nothing.gguf", "no such bucket or file"),
        ("s3://no-such-bucket/model", "no such bucket or file"),
        ("s3://bucket", "expected s3://BUCKET/FOLDER"),
        ("s3://Bucket/model", "expected s3://BUCKET/FOLDER"),
        *((f"s3://bucket/a/{part}/b", "must have no part") for part in ("..", ".", "")),
        ("s3://bucket/../../other", "must have no part"),
        ("s3://bucket/a/..", "must have no part"),
    ):
        with pytest.raises(ModelSourceError, match=words):
            resolve(source)
    server.ask_for_keys(True)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "pagelet.cli", "fetch", f"s3://{bucket}/models/tiny"],
            check=False,
            capture_output=True,
            text=True,
            env=dict(os.environ),
        )
    finally:
        server.ask_for_keys(False)
    assert result.returncode == 78, result.stderr
    last = result.stderr.splitlines()[-1]
    assert "the store refuses to give it" in last
    assert "model.credentialsSecret" in last


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ModelSourceError, match=r"pip install 'pagelet\[s3\]'"):
        resolve("s3://bucket/model")


def test_an_adapter_is_two_files(bucket: str) -> None:
    folder = resolve_adapter(f"s3://{bucket}/adapters/sql")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    assert (folder / "adapter_model.safetensors").read_bytes() == b"A and B"
    with pytest.raises(ModelSourceError, match=r"has no adapter_config.json and adapter_model"):
        resolve_adapter(f"s3://{bucket}/adapters/pickled")


def test_a_users_keys_open_the_bucket_and_wrong_ones_are_told_of(
    bucket: str, server: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server checks signatures, as Amazon's does."""
    keys = server.make_user()
    server.ask_for_keys(True)
    try:
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(ModelSourceError, match="the store refuses to give it: set AWS_ACCESS"):
            resolve(f"s3://{bucket}/models/quantized/a.gguf")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["AWS_SECRET_ACCESS_KEY"])
        assert resolve(f"s3://{bucket}/models/quantized/a.gguf").path.read_bytes() == b"GGUF-a"
        assert resolve(f"s3://{bucket}/models/tiny").weight_files()[0].read_bytes() == LARGE
    finally:
        server.ask_for_keys(False)
