"""The real hub client against a hub on this machine, in processes of their own: the client reads
its environment when it is imported."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hub import FILES, GGUF_FILES, WEIGHTS, Hub, environment, running_hub

SCRIPT = """
import json, sys
from pagelet.engine.source import resolve
from pagelet.protocol.errors import ModelSourceError
calls = []
weights = "tokenizer" not in sys.argv
try:
    files = resolve(sys.argv[1], lambda *call: calls.append(call), weights=weights)
    names = sorted(p.name for p in files.path.iterdir()) if files.path.is_dir() else []
    print(json.dumps({"path": str(files.path), "name": files.name, "files": names, "calls": calls}))
except ModelSourceError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        yield server


def resolve_in_process(source: str, home: Path, hub: Hub | None, *flags: str, **env: str) -> Any:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, source, *flags],
        env=environment(home, hub, **env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_only_what_is_needed_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    needed = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    first = resolve_in_process("hf://org/model", tmp_path, hub)
    assert first["files"] == needed
    assert first["name"] == "org/model"
    assert sorted(hub.downloaded) == needed
    assert Path(first["path"], "model.safetensors").read_bytes() == WEIGHTS
    done = [call[0] for call in first["calls"]]
    assert done == sorted(done)
    assert first["calls"][-1] == [sum(len(FILES[name]) for name in needed)] * 2

    hub.downloaded.clear()
    again = resolve_in_process("hf://org/model@v1", tmp_path, hub)
    assert again["path"] == first["path"]
    assert not hub.downloaded

    # And without a connection, or when told not to use it.
    assert resolve_in_process("hf://org/model", tmp_path, None)["path"] == first["path"]
    offline = resolve_in_process("hf://org/model", tmp_path, None, HF_HUB_OFFLINE="1")
    assert offline["path"] == first["path"]


def test_cut_connection_is_mended(hub: Hub, tmp_path: Path) -> None:
    hub.cut_next_download = True
    found = resolve_in_process("hf://org/model", tmp_path, hub)
    assert Path(found["path"], "model.safetensors").read_bytes() == WEIGHTS
    assert hub.downloaded.count("model.safetensors") == 2


def test_failed_download_keeps_what_is_complete(hub: Hub, tmp_path: Path) -> None:
    hub.refuse_weights = True
    error = resolve_in_process("hf://org/model", tmp_path, hub)["error"]
    assert "the download failed" in error
    assert "run it again" in error
    hub.refuse_weights = False
    hub.downloaded.clear()
    found = resolve_in_process("hf://org/model", tmp_path, hub)
    assert hub.downloaded == ["model.safetensors"]
    assert Path(found["path"], "model.safetensors").read_bytes() == WEIGHTS


def test_tokenizer_without_weights(hub: Hub, tmp_path: Path) -> None:
    found = resolve_in_process("hf://org/model", tmp_path, hub, "tokenizer")
    assert found["files"] == ["chat_template.jinja", "config.json", "tokenizer.json"]


def test_one_file_of_a_repository_of_gguf_files(hub: Hub, tmp_path: Path) -> None:
    found = resolve_in_process("hf://org/ggufs/a-Q4_0.gguf", tmp_path, hub)
    assert Path(found["path"]).read_bytes() == GGUF_FILES["a-Q4_0.gguf"]
    assert hub.downloaded == ["a-Q4_0.gguf"]
    of_branch = resolve_in_process("hf://org/ggufs/a-Q4_0.gguf@main", tmp_path, hub)
    assert of_branch["path"] == found["path"]
    whole = resolve_in_process("hf://org/ggufs", tmp_path, hub)
    assert "name one: hf://org/ggufs/FILE.gguf" in whole["error"]
    other = resolve_in_process("hf://org/ggufs/b.gguf", tmp_path, hub)
    assert other["error"] == "hf://org/ggufs/b.gguf: org/ggufs has no file b.gguf"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf://org/absent", "no such repository, or a private one"),
        ("hf://org/gated", "accept the model's terms"),
        ("hf://org/model@v9", "no such branch, tag or commit"),
    ],
)
def test_refusals_say_what_to_do(source: str, message: str, hub: Hub, tmp_path: Path) -> None:
    error = resolve_in_process(source, tmp_path, hub)["error"]
    assert error.startswith(f"{source}: ")
    assert message in error
    if "branch" not in message:
        assert "HF_TOKEN" in error


def test_no_connection(tmp_path: Path) -> None:
    error = resolve_in_process("hf://org/model", tmp_path, None)["error"]
    assert "the hub can't be reached; check the connection (HF_ENDPOINT" in error
    error = resolve_in_process("hf://org/model", tmp_path, None, HF_HUB_OFFLINE="1")["error"]
    assert "unset HF_HUB_OFFLINE" in error
