"""Logits of every architecture equal those of transformers, on tiny models with odd settings."""

import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from pagelet.engine.layers.context import ALONE
from pagelet.engine.layers.placement import Packing
from pagelet.engine.models.registry import MODELS, build_model
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.compile import operations
from support.paged import PagedHarness, logits_of_all, recorded_forward

TINY: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

# Name of the case: transformers' configuration class, and what differs from TINY.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa-llama3-rope-biases": (
        "LlamaConfig",
        {"rope_parameters": LLAMA3_ROPE, "attention_bias": True},
    ),
    "llama-tied-linear-rope": (
        "LlamaConfig",
        {
            "tie_word_embeddings": True,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
        },
    ),
    "llama-mha-yarn": (
        "LlamaConfig",
        {"num_key_value_heads": 6, "head_dim": None, "rope_parameters": YARN_ROPE},
    ),
    "llama-dynamic-rope": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "mistral-window": ("MistralConfig", {"sliding_window": 7}),
    "mistral-full": ("MistralConfig", {"sliding_window": None, "head_dim": 8}),
    "qwen2-window-in-some-layers": (
        "Qwen2Config",
        {
            "head_dim": None,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2-yarn-mscale": (
        "Qwen2Config",
        {
            "head_dim": None,
            "rope_parameters": YARN_ROPE | {"mscale": 1.3, "mscale_all_dim": 0.7},
        },
    ),
    "qwen3": ("Qwen3Config", {"attention_bias": True, "tie_word_embeddings": True}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 7,
            "sliding_window": 6,
            "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2
            + ["sliding_attention"],
            "query_pre_attn_scalar": 23,
            "final_logit_softcapping": 9.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        {
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe-probabilities-as-they-are": (
        "Qwen3MoeConfig",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
        },
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": ("MixtralConfig", {"num_local_experts": 3, "sliding_window": 9}),
}


def make_checkpoint(case: str, folder: Path) -> Any:
    """Saves a random model of transformers and returns it."""
    config_class, settings = CASES[case]
    given = TINY | settings
    if given["head_dim"] is None:  # some configuration classes have no such field
        del given["head_dim"]
    config = getattr(transformers, config_class)(**given)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        # Weights larger than the usual initial ones: attention and experts must matter.
        torch.nn.init.normal_(parameter, std=0.2)
        if "norm" in name and config_class != "Gemma3TextConfig":
            parameter.data += 1
    model.save_pretrained(folder)
    return model


ON_TRITON = ["llama-gqa-llama3-rope-biases", "qwen3", "gemma3", "qwen3-moe"]


@pytest.mark.parametrize("case", ON_TRITON)
@torch.no_grad()
def test_logits_in_the_interpreter_of_triton_equal_transformers(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: every operation that has a Triton kernel runs it."""
    for name in operations():
        for op in vars(importlib.import_module(f"pagelet.kernels.{name}")).values():
            if isinstance(op, Op) and "triton" in op.implementations:
                monkeypatch.setitem(op._by_device, "cpu", op.implementations["triton"])
    oracle = make_checkpoint(case, tmp_path)
    config = model_config_from_hf(json.loads((tmp_path / "config.json").read_text()))
    model = build_model(config, torch.float32, "cpu", ALONE)
    model.load_weights(load_file(tmp_path / "model.safetensors").items())
    rng = random.Random(case)
    harness = PagedHarness(config, torch.float32, rng)
    for length in (1, 7):
        harness.add([rng.randrange(config.vocab_size) for _ in range(length)])
    computed = logits_of_all(model, harness, rng, None)
    for sequence, logits in zip(harness.sequences, computed, strict=True):
        expected = oracle(torch.tensor([sequence.tokens])).logits[0]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("path", ["torch", "cpu_library"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_logits_equal_transformers(case: str, path: str, tmp_path: Path) -> None:
    oracle = make_checkpoint(case, tmp_path)
    config = model_config_from_hf(json.loads((tmp_path / "config.json").read_text()))
    recorded = path == "cpu_library"
    packings = [Packing("f32")] * 2 if recorded else []
    model = build_model(config, torch.float32, "cpu", ALONE, *packings)
    model.load_weights(load_file(tmp_path / "model.safetensors").items())

    rng = random.Random(case)
    harness = PagedHarness(config, torch.float32, rng, block_size=16 if recorded else 4)
    for length in (1, 33, 50, 24):
        harness.add([rng.randrange(config.vocab_size) for _ in range(length)])
    forward = recorded_forward(model, harness) if recorded else None
    computed = logits_of_all(model, harness, rng, forward)
    for sequence, logits in zip(harness.sequences, computed, strict=True):
        expected = oracle(torch.tensor([sequence.tokens])).logits[0]
        assert expected.std() > 0.5, "a flat model would hide faults"
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_every_architecture_has_a_case() -> None:
    covered = {name.removesuffix("Config").removesuffix("Text") for name, _ in CASES.values()}
    assert covered == {architecture.removesuffix("ForCausalLM") for architecture in MODELS}
