"""Gemma 3, text (arXiv 2503.19786): norms before and after each half of a layer, and five
sliding-window layers with rotary frequencies of their own for each full one."""

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


class SandwichNormLayer:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, config: ModelConfig, layer: int, placement: Placement) -> None:
        size, eps, plus_one = config.hidden_size, config.rms_norm_eps, config.norm_plus_one
        self.attention = Attention(config, layer, placement)
        self.mlp = GatedMLP(size, config.intermediate_size, config.hidden_act, placement)
        self.input_norm = RMSNorm(size, eps, plus_one, placement)
        self.post_attention_norm = RMSNorm(size, eps, plus_one, placement)
        self.pre_mlp_norm = RMSNorm(size, eps, plus_one, placement)
        self.post_mlp_norm = RMSNorm(size, eps, plus_one, placement)

    def __call__(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        rotation: Rotation,
        ctx: ForwardContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, residual = self.input_norm.add(hidden, residual)
        hidden = self.post_attention_norm(self.attention(hidden, rotation, ctx))
        hidden, residual = self.pre_mlp_norm.add(hidden, residual)
        return self.post_mlp_norm(self.mlp(hidden)), residual

    def record(self, recorder: Recorder, stream: ResidualStream, cos_sin: torch.Tensor) -> None:
        self.input_norm.record_add(recorder, stream)
        self.attention.record(recorder, stream.normed, cos_sin, stream.hidden)
        self.post_attention_norm.record(recorder, stream.hidden, stream.hidden)
        self.pre_mlp_norm.record_add(recorder, stream)
        self.mlp.record(recorder, stream.normed, stream.hidden)
        self.post_mlp_norm.record(recorder, stream.hidden, stream.hidden)

    def weights(self, prefix: str) -> Weights:
        yield from self.attention.weights(f"{prefix}.self_attn")
        yield from self.mlp.weights(f"{prefix}.mlp")
        yield from self.input_norm.weights(f"{prefix}.input_layernorm")
        yield from self.post_attention_norm.weights(f"{prefix}.post_attention_layernorm")
        yield from self.pre_mlp_norm.weights(f"{prefix}.pre_feedforward_layernorm")
        yield from self.post_mlp_norm.weights(f"{prefix}.post_feedforward_layernorm")


class Gemma3ForCausalLM(CausalLM):
    """Layers with norms on both sides; the rest is settings of `ModelConfig`."""

    def make_layer(self, layer: int) -> SandwichNormLayer:
        return SandwichNormLayer(self.config, layer, self.placement)
