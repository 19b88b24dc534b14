"""What loading a checkpoint accepts and refuses."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from pagelet.engine.model_config import ModelConfig, RopeConfig
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.registry import build_model

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    intermediate_size=6,
    vocab_size=11,
    max_position_embeddings=16,
    rms_norm_eps=1e-6,
    rope=RopeConfig(),
)


def make_model(**changes: object) -> CausalLM:
    config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
    return build_model(config, torch.float32, "cpu")


def checkpoint(model: CausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    for weight in model.weights():
        yield weight.name, torch.randn(weight.shape)


def test_loads_in_any_order_and_type() -> None:
    model = make_model()
    tensors = {name: tensor.bfloat16() for name, tensor in checkpoint(model)}
    model.load_weights(reversed(tensors.items()))
    assert torch.equal(model.lm_head.weight.tensor, tensors["lm_head.weight"].float())
    assert torch.equal(model.norm.weight, tensors["model.norm.weight"].float())


def test_names_what_is_missing_and_unexpected() -> None:
    model = make_model()
    tensors = dict(checkpoint(model))
    del tensors["model.layers.0.self_attn.k_proj.weight"]
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.ones(1)
    with pytest.raises(ValueError, match="does not fit LlamaForCausalLM") as error:
        model.load_weights(tensors.items())
    assert "1 missing: model.layers.0.self_attn.k_proj.weight" in str(error.value)
    assert "1 unexpected: model.layers.1.mlp.up_proj.weight" in str(error.value)


def test_a_long_list_is_cut() -> None:
    model = make_model()
    with pytest.raises(ValueError, match=r"12 missing: lm_head.weight, .*, \.\.\.$"):
        model.load_weights([])


def test_names_both_shapes() -> None:
    model = make_model()
    tensors = dict(checkpoint(model)) | {"lm_head.weight": torch.ones(12, 8)}
    with pytest.raises(ValueError, match=r"lm_head.weight: .*\[12, 8\].*\[11, 8\]"):
        model.load_weights(tensors.items())


def test_a_tied_head_is_the_embedding() -> None:
    model = make_model(tie_word_embeddings=True)
    tensors = dict(checkpoint(model))
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_weights(tensors.items())
    assert model.lm_head.weight.tensor is model.embed_tokens.weight


def test_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"MambaForCausalLM.*LlamaForCausalLM.*Mixtral"):
        make_model(architecture="MambaForCausalLM")


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "longrope"}, "'longrope' is not supported; supported: default, linear"),
        ({"rope_type": "linear"}, "'linear' lacks its field 'factor'"),
        ({"rope_type": "llama3", "factor": 8.0}, "'llama3' lacks its field 'low_freq_factor'"),
    ],
)
def test_rotary_scaling_errors_say_what_is_wrong(scaling: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(rope=RopeConfig(scaling=scaling))
