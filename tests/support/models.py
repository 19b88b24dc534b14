"""Tiny models of every kind of layer, made of nothing but a configuration."""

from typing import Any

import torch

from pagelet.engine.model_config import ModelConfig, MoEConfig, RopeConfig
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.registry import build_model


def make_config(**changes: Any) -> ModelConfig:
    settings: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "hidden_size": 24,
        "num_layers": 2,
        "num_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 32,
        "vocab_size": 29,  # no number of ranks divides it
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope": RopeConfig(),
    }
    return ModelConfig(**(settings | changes))


CONFIGS = {
    "biases": make_config(qkv_bias=True, o_bias=True),
    "tied": make_config(tie_word_embeddings=True, num_kv_heads=4),
    "gemma3": make_config(
        architecture="Gemma3ForCausalLM",
        norm_plus_one=True,
        qk_norm=True,
        embedding_scale=3.0,
        hidden_act="gelu_tanh",
        final_logit_softcap=5.0,
        attention_logit_softcap=4.0,
        sliding_window=5,
        sliding_layers=frozenset({0}),
        local_rope=RopeConfig(theta=100.0),
    ),
    "qwen3-moe": make_config(
        architecture="Qwen3MoeForCausalLM",
        qk_norm=True,
        moe=MoEConfig(5, 2, 16, True, dense_layers=frozenset({1})),
    ),
    "mixtral": make_config(
        architecture="MixtralForCausalLM", num_kv_heads=8, moe=MoEConfig(4, 2, 32, True)
    ),
}


def randomize(model: CausalLM) -> None:
    """Weights large enough to matter, from a whole checkpoint that is the same for all ranks."""
    generator = torch.Generator().manual_seed(1)
    whole = build_model(model.config, torch.float32, "meta")
    model.load_weights(
        (weight.name, torch.randn(weight.shape, generator=generator) * 0.3)
        for weight in whole.weights()
    )
