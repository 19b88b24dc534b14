"""From weights to a model on its device, and what runs it."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Literal

import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.layers.context import ForwardContext, KVBinding, Ranks
from pagelet.engine.layers.lora import LoraBatch
from pagelet.engine.layers.placement import Packing
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.registry import build_model
from pagelet.engine.runner.cpu_forward import CpuForward, choose_packing, why_not_recorded
from pagelet.engine.runner.graphs import Forward
from pagelet.engine.runner.kv_pages import choose_kv_dtype
from pagelet.engine.runner.memory import out_of_memory_named
from pagelet.engine.weights.quantized_tensor import StoredTensor
from pagelet.kernels.paged_attention.cpu import PANEL_TOKENS
from pagelet.protocol.config import EngineOptions, Quantization

_log = logging.getLogger("pagelet.engine.runner")

Weights = Iterable[tuple[str, StoredTensor]]
"""The full tensors of a checkpoint, by name."""


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model without a KV cache yet."""

    model: CausalLM
    kv_dtype: torch.dtype
    """Of the cache that it is to have."""

    def bind(
        self,
        kv: Mapping[int, KVBinding],
        num_groups: int,
        options: EngineOptions,
        max_model_len: int,
    ) -> Forward:
        """The forward pass over pages of `num_groups` KV groups, in some of which a pipeline stage
        has no layer."""
        if self.model.placement.packing is not None:
            return CpuForward(
                self.model,
                kv,
                max_tokens=options.scheduler.max_num_batched_tokens,
                max_requests=options.scheduler.max_num_seqs,
                max_model_len=max_model_len,
                num_groups=num_groups,
            )
        return lambda input_ids, positions, attention: self.model.forward(
            input_ids, positions, ForwardContext(attention, kv)
        )


def load_model(
    config: ModelConfig,
    weights: Weights | None,
    options: EngineOptions,
    quantization: Quantization,
    *,
    dtype: torch.dtype,
    device: torch.device,
    ranks: Ranks,
    lora: LoraBatch | None = None,
) -> LoadedModel:
    """Builds a model's part for one rank and fills it with `weights`, or with random ones.

    Raises `ConfigurationError` if it cannot be built so, the checkpoint does not fit it, or memory
    does not suffice.
    """
    packings = _choose_packings(
        quantization,
        device,
        dtype,
        config.head_dim,
        options.cache.block_size,
        is_first_rank=ranks.tp.rank == 0 and ranks.pp.is_first,
    )
    kv_dtype = choose_kv_dtype(
        options.cache.kv_cache_dtype, dtype, device, recorded=packings is not None
    )
    packing, head_packing = packings or (None, None)
    try:
        with out_of_memory_named(
            device, "the weights", "Take a smaller model, or more --tensor-parallel-size"
        ):
            model = build_model(
                config,
                dtype,
                device,
                ranks,
                packing,
                head_packing,
                lora,
                # On a CPU without its library such weights would be widened every step.
                keep_quantized=device.type == "cuda" and quantization == "auto",
                rounding=_rounding(quantization, device),
            )
            if weights is None:
                model.init_dummy()
            else:
                model.load_weights(weights)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return LoadedModel(model, kv_dtype)


def _choose_packings(
    quantization: Quantization,
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    block_size: int,
    *,
    is_first_rank: bool,
) -> tuple[Packing, Packing] | None:
    """For layers and head, where the CPU library runs the model; None if torch's operations do."""
    if quantization == "fp8" and device.type == "cpu":
        raise ConfigurationError(
            "--quantization fp8 is for a GPU: on a CPU give int8, which reads as few bytes"
        )
    reason = why_not_recorded(device, dtype, head_dim, block_size)
    if reason is None:
        return choose_packing(quantization, dtype)
    if why_not_recorded(device, dtype, head_dim, PANEL_TOKENS) is None:
        raise ConfigurationError(
            f"--block-size {block_size} is for a GPU: on a CPU give a multiple of {PANEL_TOKENS}, "
            "or leave --block-size out"
        )
    if quantization in ("int8", "int4") and device.type == "cpu":
        raise ConfigurationError(
            f"--quantization {quantization} needs the CPU library, which cannot run this model "
            f"here: {reason}. Leave --quantization out"
        )
    if quantization == "int4":
        raise ConfigurationError(
            "--quantization int4 is for the CPU: on a GPU give int8 or fp8, or take a "
            "checkpoint of 4 bits (GPTQ, AWQ or GGUF) and leave --quantization out"
        )
    if device.type == "cpu" and is_first_rank:
        _log.warning(
            "the CPU library does not run this model (%s): torch's operations do, which are "
            "slower, and what shares a step with a request may change its answer",
            reason,
        )
    return None


def _rounding(quantization: Quantization, device: torch.device) -> Literal["int8", "fp8"] | None:
    """What a GPU rounds the weights of linear layers to as it loads them."""
    if device.type != "cuda" or quantization not in ("int8", "fp8"):
        return None
    return "int8" if quantization == "int8" else "fp8"
