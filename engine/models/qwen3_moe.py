"""Qwen3-MoE (arXiv 2505.09388): Qwen3 with a mixture of experts in most layers."""

from pagelet.engine.layers.moe import ExpertNames, SparseMoE
from pagelet.engine.models.llama import LlamaForCausalLM, PreNormLayer


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    """Pre-norm layers with experts, or with a dense MLP where the configuration says so."""

    def make_layer(self, layer: int) -> PreNormLayer:
        config = self.config
        assert config.moe is not None
        if layer in config.moe.dense_layers:
            return super().make_layer(layer)
        names = ExpertNames(gate="gate_proj", up="up_proj", down="down_proj")
        experts = SparseMoE(config.hidden_size, config.moe, names, self.placement)
        return PreNormLayer(config, layer, experts, self.placement)
