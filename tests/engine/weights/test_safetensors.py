"""Checkpoints as transformers saves them, compared with the models that they were saved from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pagelet.engine.models.architectures import SUPPORTED_ARCHITECTURES
from pagelet.engine.models.registry import build_model
from pagelet.engine.source import ModelFiles, resolve
from pagelet.engine.weights.iterate import iterate_weights
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.errors import ModelSourceError


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_sharded_checkpoint_gives_the_models_weights(
    architecture: str,
    tmp_path: Path,
    make_tiny_model: Callable[..., Any],
    checkpoint_weights: Callable[[Any], dict[str, torch.Tensor]],
) -> None:
    model = make_tiny_model(architecture)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    files = resolve(str(tmp_path))
    assert files.format == "safetensors"
    assert len(files.weight_files()) > 1

    calls: list[tuple[int, int]] = []
    config = load_model_config(files)
    found = dict(iterate_weights(files, config, lambda *call: calls.append(call)))
    expected = checkpoint_weights(model)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name

    done = [call[0] for call in calls]
    size = sum(path.stat().st_size for path in files.weight_files())
    assert done == sorted(done)
    assert calls[-1] == (size, size)
    assert all(total == size for _, total in calls)

    # The model asks for exactly these names and shapes: it raises otherwise.
    build_model(config, torch.float32, "cpu").load_weights(found.items())


def small_checkpoint(folder: Path, **settings: Any) -> ModelFiles:
    config = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"} | settings
    (folder / "config.json").write_text(json.dumps(config))
    weights = {
        "model.embed_tokens.weight": torch.randn(16, 8, dtype=torch.bfloat16),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "lm_head.weight": torch.randn(16, 8, dtype=torch.bfloat16),
    }
    save_file(weights, folder / "model.safetensors")
    return resolve(str(folder))


def test_tensors_keep_their_type_and_computed_ones_are_left_out(tmp_path: Path) -> None:
    files = small_checkpoint(tmp_path)
    found = dict(iterate_weights(files, load_model_config(files)))
    assert found.keys() == {"model.embed_tokens.weight", "lm_head.weight"}
    assert all(tensor.dtype == torch.bfloat16 for tensor in found.values())


def test_type_of_the_weights_where_the_config_says_none(tmp_path: Path) -> None:
    files = small_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert load_model_config(files).checkpoint_dtype == "bfloat16"


def test_tied_head_is_left_out(tmp_path: Path) -> None:
    files = small_checkpoint(tmp_path, tie_word_embeddings=True)
    found = dict(iterate_weights(files, load_model_config(files)))
    assert found.keys() == {"model.embed_tokens.weight"}


@pytest.mark.parametrize(
    ("prefix", "head"),
    [("language_model.model.", "language_model.lm_head."), ("model.language_model.", "lm_head.")],
)
def test_multimodal_gemma3_gives_its_language_model(
    prefix: str, head: str, tmp_path: Path, make_tiny_model: Callable[..., Any]
) -> None:
    """In the layout of the published checkpoints, and in that of transformers since 4.52."""
    model = make_tiny_model("Gemma3ForCausalLM", tie_word_embeddings=False)
    text = model.state_dict()
    vision = "" if prefix.startswith("language") else "model."
    stored = {
        f"{vision}vision_tower.vision_model.embeddings.patch_embedding.weight": torch.ones(2),
        f"{vision}multi_modal_projector.mm_input_projection_weight": torch.ones(2),
    }
    for name, tensor in text.items():
        renamed = name.replace("model.", prefix, 1).replace("lm_head.", head, 1)
        stored[renamed] = tensor
    save_file(stored, tmp_path / "model.safetensors")
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": model.config.to_dict(),
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = resolve(str(tmp_path))
    found = dict(iterate_weights(files, load_model_config(files)))
    assert found.keys() == text.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in text.items())


def test_damaged_shard_is_named(tmp_path: Path) -> None:
    files = small_checkpoint(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    config = load_model_config(files)
    for broken in (content[:-3], content[:100], b"", b"\xff" * 64):
        path.write_bytes(broken)
        with pytest.raises(ModelSourceError, match=r"model\.safetensors: damaged"):
            list(iterate_weights(files, config))


def test_missing_shard_is_named(tmp_path: Path, make_tiny_model: Callable[..., Any]) -> None:
    make_tiny_model("Qwen3ForCausalLM").save_pretrained(tmp_path, max_shard_size="100KB")
    files = resolve(str(tmp_path))
    lost = files.weight_files()[1]
    lost.unlink()
    with pytest.raises(ModelSourceError, match=f"shards are missing: {lost.name}"):
        list(iterate_weights(files, load_model_config(files)))
    with pytest.raises(ModelSourceError, match=f"shards are missing: {lost.name}"):
        resolve(str(tmp_path))


def test_quantised_integers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    weights = {"model.layers.0.mlp.up_proj.weight": torch.ones(2, 2, dtype=torch.int8)}
    save_file(weights, tmp_path / "model.safetensors")
    files = resolve(str(tmp_path))
    with pytest.raises(ModelSourceError, match=r"up_proj.weight is stored as torch.int8"):
        list(iterate_weights(files, load_model_config(files)))
