"""From a model's configuration to the model."""

from typing import Literal

import torch

from pagelet.engine.layers.context import ALONE, Ranks
from pagelet.engine.layers.lora import LoraBatch
from pagelet.engine.layers.pipeline import check_pipeline
from pagelet.engine.layers.placement import Packing, Placement
from pagelet.engine.layers.tensor_parallel import check_tensor_parallel
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.models.architectures import SUPPORTED_ARCHITECTURES
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.gemma3 import Gemma3ForCausalLM
from pagelet.engine.models.llama import LlamaForCausalLM
from pagelet.engine.models.mixtral import MixtralForCausalLM
from pagelet.engine.models.qwen3_moe import Qwen3MoeForCausalLM

MODELS: dict[str, type[CausalLM]] = {
    "Gemma3ForCausalLM": Gemma3ForCausalLM,
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": LlamaForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    "Qwen2ForCausalLM": LlamaForCausalLM,
    "Qwen3ForCausalLM": LlamaForCausalLM,
    "Qwen3MoeForCausalLM": Qwen3MoeForCausalLM,
}
assert set(MODELS) == set(SUPPORTED_ARCHITECTURES)


def build_model(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str,
    ranks: Ranks = ALONE,
    packing: Packing | None = None,
    head_packing: Packing | None = None,
    lora: LoraBatch | None = None,
    *,
    keep_quantized: bool = False,
    rounding: Literal["int8", "fp8"] | None = None,
) -> CausalLM:
    """The model with uninitialised weights, or one rank's part of it; for the CPU library
    with the packing of its linear layers and of its head, and with `lora` if its layers may have
    adapters. `keep_quantized` and `rounding` are as in `Placement`.

    Raises ValueError for an architecture that is not here, for a rotary scaling that is not, and
    for parallel sizes that do not divide the model; each error names what would work.
    """
    if config.architecture not in MODELS:
        raise ValueError(
            f"architecture {config.architecture!r} is not supported; supported: "
            f"{', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    check_tensor_parallel(config, ranks.tp.size, expert_parallel=ranks.expert_parallel)
    check_pipeline(config, ranks.pp.size)
    placement = Placement(
        dtype,
        torch.device(device),
        ranks,
        packing,
        head_packing,
        keep_quantized=keep_quantized,
        rounding=rounding,
        lora=lora,
    )
    return MODELS[config.architecture](config, placement)
