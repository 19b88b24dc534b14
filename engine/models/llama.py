"""Llama 2 to 3.x, and the models that are Llama with other settings of `ModelConfig`: Mistral
(sliding window), Qwen2 (biases of q, k and v) and Qwen3 (norms of queries and keys)."""

from typing import Protocol

import torch

from pagelet.engine.layers.attention import Attention
from pagelet.engine.layers.context import ForwardContext
from pagelet.engine.layers.mlp import GatedMLP
from pagelet.engine.layers.norm import RMSNorm
from pagelet.engine.layers.placement import Placement, Weights
from pagelet.engine.layers.recording import Recorder, ResidualStream
from pagelet.engine.layers.rotary import Rotation
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.models.causal_lm import CausalLM


class FeedForward(Protocol):
    """The second half of a layer: a gated MLP or a mixture of experts."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None: ...

    def weights(self, prefix: str) -> Weights: ...


class PreNormLayer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        mlp: FeedForward,
        placement: Placement,
        mlp_name: str = "mlp",
    ) -> None:
        size, eps, plus_one = config.hidden_size, config.rms_norm_eps, config.norm_plus_one
        self.attention = Attention(config, layer, placement)
        self.mlp = mlp
        self.mlp_name = mlp_name
        self.input_norm = RMSNorm(size, eps, plus_one, placement)
        self.post_attention_norm = RMSNorm(size, eps, plus_one, placement)

    def __call__(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Rotation,
        ctx: ForwardContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self.input_norm.add(hidden, residual)
        hidden = self.attention(hidden, rotation, ctx)
        hidden, residual = self.post_attention_norm.add(hidden, residual)
        return self.mlp(hidden), residual

    def record(self, recorder: Recorder, stream: ResidualStream, cos_sin: torch.Tensor) -> None:
        self.input_norm.record_add(recorder, stream)
        self.attention.record(recorder, stream.normed, cos_sin, stream.hidden)
        self.post_attention_norm.record_add(recorder, stream)
        self.mlp.record(recorder, stream.normed, stream.hidden)

    def weights(self, prefix: str) -> Weights:
        yield from self.attention.weights(f"{prefix}.self_attn")
        yield from self.mlp.weights(f"{prefix}.{self.mlp_name}")
        yield from self.input_norm.weights(f"{prefix}.input_layernorm")
        yield from self.post_attention_norm.weights(f"{prefix}.post_attention_layernorm")


class LlamaForCausalLM(CausalLM):
    """Pre-norm layers with a gated MLP."""

    def make_layer(self, layer: int) -> PreNormLayer:
        config = self.config
        mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, config.hidden_act, self.placement
        )
        return PreNormLayer(config, layer, mlp, self.placement)
