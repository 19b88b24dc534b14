"""`pagelet fetch` against a hub on this machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub import WEIGHTS, Hub, environment, running_hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        yield server


def fetch(
    home: Path, hub: Hub | None, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pagelet.cli", "fetch", *arguments],
        env=environment(home, hub, **env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_model_is_fetched_once_and_then_there_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    first = fetch(tmp_path, hub, "hf://org/model")
    assert first.returncode == 0, first.stderr
    assert Path(first.stdout.strip(), "model.safetensors").read_bytes() == WEIGHTS
    hub.downloaded.clear()
    assert fetch(tmp_path, hub, "hf://org/model").stdout == first.stdout
    assert hub.downloaded == []
    offline = fetch(tmp_path, None, "hf://org/model", HF_HUB_OFFLINE="1")
    assert offline.stdout == first.stdout


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_downloaded_again(hub: Hub, tmp_path: Path, name: str) -> None:
    hub.damage_next_download = name
    result = fetch(tmp_path, hub, "hf://org/model")
    assert result.returncode == 0, result.stderr
    assert hub.downloaded.count(name) == 2
    assert Path(result.stdout.strip(), "model.safetensors").read_bytes() == WEIGHTS


def test_a_file_that_rots_on_the_disk_is_found(hub: Hub, tmp_path: Path) -> None:
    folder = Path(fetch(tmp_path, hub, "hf://org/model").stdout.strip())
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"rot")
    (folder / "pytorch_model.bin").symlink_to("../../blobs/deleted")
    hub.downloaded.clear()
    assert fetch(tmp_path, hub, "hf://org/model").returncode == 0
    assert hub.downloaded == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_tokenizer_and_model_without_weights(hub: Hub, tmp_path: Path) -> None:
    source = "hf://org/model"
    result = fetch(tmp_path, hub, source, "--no-weights", "--tokenizer", source)
    assert result.returncode == 0, result.stderr
    assert "model.safetensors" not in hub.downloaded


def test_the_last_line_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    result = fetch(tmp_path, hub, "hf://org/gated")
    assert result.returncode == 78
    assert result.stderr.splitlines()[-1].startswith("Error: hf://org/gated: access is restricted")
    assert fetch(tmp_path, hub).returncode == 2


def test_adapters_are_fetched_and_checked_beside_the_model(hub: Hub, tmp_path: Path) -> None:
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": WEIGHTS}
    hub.repositories["org/lora"] = files | {"training_args.bin": b"not needed"}
    hub.damage_next_download = "adapter_model.safetensors"
    arguments = ("hf://org/model", "--no-weights", "--adapter", "hf://org/lora@v1")
    result = fetch(tmp_path, hub, *arguments)
    assert result.returncode == 0, result.stderr
    _, folder = map(Path, result.stdout.splitlines())
    assert {path.name for path in folder.glob("[!.]*")} == files.keys()
    assert (folder / "adapter_model.safetensors").read_bytes() == WEIGHTS
    assert hub.downloaded.count("adapter_model.safetensors") == 2
    assert "training_args.bin" not in hub.downloaded
    # As a replica looks for it, whose loader has been there.
    offline = fetch(tmp_path, None, "--adapter", "hf://org/lora@v1", HF_HUB_OFFLINE="1")
    assert offline.stdout.strip() == str(folder)


def test_a_repository_without_an_adapter_says_so(hub: Hub, tmp_path: Path) -> None:
    result = fetch(tmp_path, hub, "--adapter", "hf://org/model")
    assert result.returncode == 78
    assert "has no adapter_config.json and no adapter_model.safetensors" in result.stderr
