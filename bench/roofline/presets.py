"""Models whose sizes are at hand without a download: the fields of their public `config.json`."""

import json
from pathlib import Path
from typing import Any

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.source import resolve
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.engine.weights.load_config import load_model_config


def _config(
    architecture: str,
    sizes: tuple[int, int, int, int, int, int],
    **more: Any,
) -> dict[str, Any]:
    """`sizes`: hidden, layers, heads, KV heads, intermediate, vocabulary."""
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
    )
    return {
        "architectures": [architecture],
        "torch_dtype": "bfloat16",
        **dict(zip(names, sizes, strict=True)),
        **more,
    }


_QWEN2, _LLAMA = "Qwen2ForCausalLM", "LlamaForCausalLM"
PRESETS: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _config(_QWEN2, (896, 24, 14, 2, 4864, 151_936), tie_word_embeddings=True),
    "qwen2.5-3b": _config(_QWEN2, (2048, 36, 16, 2, 11_008, 151_936), tie_word_embeddings=True),
    "qwen2.5-coder-32b": _config(_QWEN2, (5120, 64, 40, 8, 27_648, 152_064)),
    "llama-3.1-8b": _config(
        _LLAMA, (4096, 32, 32, 8, 14_336, 128_256), max_position_embeddings=131_072
    ),
    "llama-3.1-70b": _config(
        _LLAMA, (8192, 80, 64, 8, 28_672, 128_256), max_position_embeddings=131_072
    ),
    "qwen3-8b": _config(
        "Qwen3ForCausalLM",
        (4096, 36, 32, 8, 12_288, 151_936),
        head_dim=128,
        max_position_embeddings=40_960,
    ),
    "qwen3-30b-a3b": _config(
        "Qwen3MoeForCausalLM",
        (2048, 48, 32, 4, 6144, 151_936),
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
        max_position_embeddings=40_960,
    ),
    "mixtral-8x7b": _config(
        "MixtralForCausalLM",
        (4096, 32, 32, 8, 14_336, 32_000),
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=32_768,
    ),
}


def find_model(name: str) -> ModelConfig:
    """A preset, a `config.json`, or a model as `pagelet serve` takes it. Raises ValueError, or
    `ModelSourceError` for a model that cannot be read."""
    if name.lower() in PRESETS:
        return model_config_from_hf(PRESETS[name.lower()])
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        try:
            content = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path} holds no JSON object")
        return model_config_from_hf(content)
    if "://" in name or path.exists():
        return load_model_config(resolve(name))
    raise ValueError(
        f"{name!r} is no file, no folder, no hf:// or package:// source, and none of the sizes "
        f"that are known here: {', '.join(PRESETS)}"
    )
