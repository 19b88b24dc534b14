"""Mixtral 8x7B and 8x22B (arXiv 2401.04088): Llama with a mixture of experts in every layer."""

from pagelet.engine.layers.moe import ExpertNames, SparseMoE
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.llama import PreNormLayer


class MixtralForCausalLM(CausalLM):
    """Pre-norm layers with experts."""

    def make_layer(self, layer: int) -> PreNormLayer:
        config = self.config
        assert config.moe is not None
        names = ExpertNames(gate="w1", up="w3", down="w2")
        experts = SparseMoE(config.hidden_size, config.moe, names, self.placement)
        return PreNormLayer(config, layer, experts, self.placement, "block_sparse_moe")
