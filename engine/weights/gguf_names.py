"""GGUF's tensor names in Hugging Face's terms."""

import dataclasses
import re
from typing import Final

from pagelet.engine.model_config import ModelConfig

_TOP: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_BLOCK: Final = _BLOCK | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MIXTRAL_PROJECTIONS: Final = {"gate": "w1", "up": "w3", "down": "w2"}
# The rotary embedding is computed from the config.
_COMPUTED: Final = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")
_IN_BLOCK: Final = re.compile(r"blk\.(?P<layer>\d+)\.(?P<what>.+)\.(?P<kind>weight|bias)")
_EXPERTS: Final = re.compile(r"ffn_(?P<projection>gate|up|down)(_exps|\.(?P<expert>\d+))")


@dataclasses.dataclass(frozen=True)
class HFName:
    """Where a GGUF tensor goes."""

    names: tuple[str, ...]
    """One name; or, for a tensor that stacks every expert's matrix, one for each expert."""
    stacked: bool = False


def hf_name(gguf_name: str, config: ModelConfig) -> HFName | None:
    """None for tensors that the model doesn't load. KeyError for one that it doesn't know."""
    if _COMPUTED.fullmatch(gguf_name):
        return None
    match = _IN_BLOCK.fullmatch(gguf_name)
    if match is None:
        stem, _, kind = gguf_name.rpartition(".")
        return HFName((f"{_TOP[stem]}.{kind}",))
    prefix, what, kind = f"model.layers.{match['layer']}", match["what"], match["kind"]
    mixtral = config.architecture == "MixtralForCausalLM"
    block = "block_sparse_moe" if mixtral else "mlp"
    if what == "ffn_gate_inp":
        return HFName((f"{prefix}.{block}.gate.{kind}",))
    if experts := _EXPERTS.fullmatch(what):
        projection = experts["projection"]
        end = _MIXTRAL_PROJECTIONS[projection] if mixtral else f"{projection}_proj"
        if experts["expert"] is not None:
            return HFName((f"{prefix}.{block}.experts.{experts['expert']}.{end}.{kind}",))
        if config.moe is None:
            raise KeyError(gguf_name)
        names = (
            f"{prefix}.{block}.experts.{expert}.{end}.{kind}"
            for expert in range(config.moe.num_experts)
        )
        return HFName(tuple(names), stacked=True)
    names_in_block = _GEMMA3_BLOCK if config.architecture == "Gemma3ForCausalLM" else _BLOCK
    return HFName((f"{prefix}.{names_in_block[what]}.{kind}",))
