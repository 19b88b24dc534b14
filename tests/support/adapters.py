"""Random LoRA adapters as PEFT saves them, and models that they were merged into."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from pagelet.engine.model_config import ModelConfig
from pagelet.engine.weights.adapter_config import adapter_modules, read_adapter
from pagelet.protocol.lora import LoraAdapter

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def save_adapter(
    folder: Path, model: Any, seed: int, rank: int, targets: tuple[str, ...], **config: Any
) -> Any:
    """Writes an adapter of those modules of a transformers model, which is large enough to change
    its answers; returns a copy of the model with it merged."""
    generator = torch.Generator().manual_seed(seed)
    merged = copy.deepcopy(model)
    alpha = 2.0 * rank
    factor = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    tensors = {}
    for name, module in merged.named_modules():
        if name.rpartition(".")[2] not in targets or ".experts" in name:
            continue
        a = torch.randn(rank, module.in_features, generator=generator) * 0.2
        b = torch.randn(module.out_features, rank, generator=generator) * 0.2
        tensors[f"base_model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.{name}.lora_B.weight"] = b
        module.weight.data += (factor * b.double() @ a.double()).to(module.weight.dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return merged


def random_adapter(
    folder: Path, config: ModelConfig, seed: int, rank: int, scale: float = 0.3
) -> LoraAdapter:
    """An adapter of every projection that may have one, large enough to change answers."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for module, (out_size, in_size) in adapter_modules(config).items():
        name = f"base_model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, in_size, generator=generator) * scale
        tensors[f"{name}.lora_B.weight"] = torch.randn(out_size, rank, generator=generator) * scale
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": rank}))
    return read_adapter(f"adapter {seed}", folder, config, rank)
