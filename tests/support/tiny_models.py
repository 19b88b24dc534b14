"""Small random models in float64, so that rounding neither hides a fault nor makes one."""

from typing import Any, Literal

import torch

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions, SchedulerOptions

TINY: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "torch_dtype": "float64",
}

WITH_SMOLLM2S_TOKENIZER: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
"""Of random models that are served with a real vocabulary."""


def tiny_transformers_model(kind: str, seed: int = 0, **settings: Any) -> Any:
    """A model of transformers' `{kind}ForCausalLM`."""
    import transformers

    torch.manual_seed(seed)
    model_class = getattr(transformers, f"{kind}ForCausalLM")
    return model_class(model_class.config_class(**{**TINY, **settings})).double().eval()


def tiny_config(model: Any) -> ModelConfig:
    """Our configuration of a transformers model."""
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    return model_config_from_hf(config)


def tiny_options(
    *,
    num_blocks: int = 64,
    tensor_parallel_size: int = 1,
    load_format: Literal["auto", "dummy"] = "auto",
) -> EngineOptions:
    """Options that suit the tiny models: float64, blocks of 8 tokens."""
    options = EngineOptions(
        model=ModelOptions(source="tiny", dtype="float64", load_format=load_format),
        cache=CacheOptions(block_size=8, num_blocks=num_blocks),
        scheduler=SchedulerOptions(max_num_seqs=8, max_num_batched_tokens=64),
        device="cpu",
    )
    options.parallel.tensor_parallel_size = tensor_parallel_size
    return options
