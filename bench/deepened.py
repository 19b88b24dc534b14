"""A larger model that says the same: a pair of which one can draft for the other.

Layers are added whose attention and MLP add nothing to the residual stream, so that the model costs
several times as much and its logits are those of the original. As a draft model the original is
then nearly always right, as one that was trained for the task would like to be.
"""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file

from pagelet.engine.source import resolve_model
from pagelet.engine.weights.iterate import iterate_weights
from pagelet.engine.weights.load_config import load_model_config
from pagelet.engine.weights.quantized_tensor import as_floats
from pagelet.protocol.config import EngineOptions, ModelOptions

_LAYER = re.compile(r"(model\.layers\.)(\d+)(\..*)")
_ENDS_OF_BRANCHES = (".self_attn.o_proj.weight", ".mlp.down_proj.weight")


def write_deepened(source: str, folder: Path, times: int) -> None:
    """Writes the Llama of `source` with `times` as many layers to a folder, without a tokenizer;
    what is not quantised stays as it is stored. Raises ValueError for a model of another
    architecture, and what `resolve_model` raises."""
    files = resolve_model(EngineOptions(model=ModelOptions(source=source)))
    config = load_model_config(files)
    if config.architecture != "LlamaForCausalLM":
        raise ValueError(f"{source} is a {config.architecture}; only a Llama is deepened")
    weights: dict[str, torch.Tensor] = {}
    for name, stored in iterate_weights(files, config):
        tensor = as_floats(stored, torch.bfloat16)
        layer = _LAYER.fullmatch(name)
        if layer is None:
            weights[name] = tensor.clone()
            continue
        before, number, after = layer.groups()
        first = int(number) * times
        weights[f"{before}{first}{after}"] = tensor.clone()
        for added in range(first + 1, first + times):
            copy = torch.zeros_like(tensor) if after in _ENDS_OF_BRANCHES else tensor.clone()
            weights[f"{before}{added}{after}"] = copy
    save_file(weights, folder / "model.safetensors")
    settings = {
        "architectures": [config.architecture],
        "model_type": "llama",
        "dtype": config.checkpoint_dtype,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers * times,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": config.rope.scaling,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.qkv_bias,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }
    (folder / "config.json").write_text(json.dumps(settings))
