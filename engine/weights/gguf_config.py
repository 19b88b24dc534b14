"""ModelConfig from a GGUF file's metadata and tensor descriptions.

Names of keys are those of ggml's `docs/gguf.md`. llama.cpp knows some facts by architecture rather
than from the file; those are repeated here with the reason.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pagelet.engine.model_config import ModelConfig, MoEConfig, RopeConfig
from pagelet.engine.weights.fields import MAX_COUNT, Fields
from pagelet.engine.weights.gguf_file import GGMLType, GGUFFile
from pagelet.engine.weights.hf_config import unsupported_architecture
from pagelet.protocol.errors import ModelSourceError

# Mistral's and Mixtral's files also say `llama`.
_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
# Files of chat models often name only the base model's end of text as eos; llama.cpp, too, looks
# for the tokens that end a turn by their text.
_END_OF_TURN: Final = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
)
_CONTROL_TOKEN: Final = 3
_FLOAT_DTYPES: Final = {
    GGMLType.F64: "float64",
    GGMLType.F32: "float32",
    GGMLType.F16: "float16",
}
_LLAMA3_LOW_FREQ, _LLAMA3_HIGH_FREQ, _LLAMA3_ORIGINAL_LENGTH = 1.0, 4.0, 8192
_GEMMA3_PATTERN: Final = 6
_GEMMA3_LOCAL_THETA: Final = 10000.0
_GEMMA3_27B_LAYERS: Final = 62


def model_config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Reads the file's description of its model. Raises ModelSourceError for an architecture that
    has no model here, and where keys or tensors are missing or of the wrong type."""
    gguf_name = Fields(file.metadata, str(file.path)).string("general.architecture")
    if gguf_name not in _ARCHITECTURES:
        raise unsupported_architecture(f"{gguf_name} ({file.path})")
    fields = _architecture_fields(file, gguf_name)
    architecture = _ARCHITECTURES[gguf_name]
    if gguf_name == "llama" and "expert_count" in fields and fields.integer("expert_count") > 1:
        architecture = "MixtralForCausalLM"
    gemma = architecture == "Gemma3ForCausalLM"

    hidden_size = fields.integer("embedding_length")
    num_layers = fields.integer("block_count", maximum=MAX_COUNT)
    num_heads = fields.integer("attention.head_count")
    num_kv_heads = fields.optional_integer("attention.head_count_kv") or num_heads
    if num_heads % num_kv_heads:
        raise fields.wrong("attention.head_count_kv", f"a divisor of {num_heads} heads")
    head_dim = fields.optional_integer("attention.key_length") or hidden_size // num_heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if key in fields and fields.integer(key) != head_dim:
            raise fields.wrong(key, f"the head dimension, {head_dim},")
    moe = _moe(fields, architecture)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelSourceError(f"{file.path}: has no token embedding `token_embd.weight`")
    window = fields.optional_integer("attention.sliding_window") if gemma else None
    rope = RopeConfig(_float32(fields, "rope.freq_base", 10000.0), _rope_scaling(file, fields))
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.optional_integer("feed_forward_length")
        or (moe.intermediate_size if moe else fields.integer("feed_forward_length")),
        vocab_size=embedding.shape[0],
        max_position_embeddings=fields.integer("context_length"),
        rms_norm_eps=_float32(fields, "attention.layer_norm_rms_epsilon", 1e-6),
        rope=rope,
        local_rope=RopeConfig(_float32(fields, "rope.freq_base_swa", _GEMMA3_LOCAL_THETA))
        if gemma
        else None,
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        hidden_act="gelu_tanh" if gemma else "silu",
        sliding_window=window,
        sliding_layers=_sliding_layers(file, num_layers) if window else frozenset(),
        # Gemma 3's 27B model scales by its width a head, the smaller ones by the head's dimension.
        attention_scale=(hidden_size / num_heads if num_layers == _GEMMA3_27B_LAYERS else head_dim)
        ** -0.5
        if gemma
        else None,
        attention_logit_softcap=fields.optional_number("attn_logit_softcapping"),
        final_logit_softcap=fields.optional_number("final_logit_softcapping"),
        embedding_scale=hidden_size**0.5 if gemma else None,
        norm_plus_one=gemma,
        moe=moe,
        checkpoint_dtype=_dtype(file),
        eos_token_ids=_eos_token_ids(file),
        bos_token_id=Fields(file.metadata, str(file.path)).optional_integer(
            "tokenizer.ggml.bos_token_id", minimum=0
        ),
    )


def _architecture_fields(file: GGUFFile, gguf_name: str) -> Fields:
    """The keys under the architecture's name, without it; a value that the file repeats for every
    layer is taken once."""
    prefix = f"{gguf_name}."
    values: dict[str, Any] = {}
    for key, value in file.metadata.items():
        if not key.startswith(prefix):
            continue
        if isinstance(value, np.ndarray):
            distinct = set(value.tolist())
            value = distinct.pop() if len(distinct) == 1 else value.tolist()
        values[key.removeprefix(prefix)] = value
    return Fields(values, f"{file.path}: {gguf_name}")


def _float32(fields: Fields, key: str, default: float) -> float:
    """A float32 as the decimal that it was written from: 1e-06, not 9.999999974752427e-07."""
    if key not in fields:
        return default
    return float(str(np.float32(fields.number(key))))


def _sliding_layers(file: GGUFFile, num_layers: int) -> frozenset[int]:
    """Every sixth layer of Gemma 3 attends to everything, unless the file says otherwise: with the
    period, or with a flag for every layer."""
    key = "gemma3.attention.sliding_window_pattern"
    pattern = file.metadata.get(key, _GEMMA3_PATTERN)
    if isinstance(pattern, np.ndarray):
        if pattern.shape != (num_layers,):
            raise ModelSourceError(f"{file.path}: `{key}` has not one flag for each layer")
        return frozenset(np.flatnonzero(pattern).tolist())
    if not isinstance(pattern, int) or pattern < 1:
        raise ModelSourceError(f"{file.path}: `{key}` is {pattern!r}, not a number of layers")
    return frozenset(i for i in range(num_layers) if (i + 1) % pattern)


def _moe(fields: Fields, architecture: str) -> MoEConfig | None:
    if architecture not in ("MixtralForCausalLM", "Qwen3MoeForCausalLM"):
        return None
    size = fields.optional_integer("expert_feed_forward_length")
    num_experts = fields.integer("expert_count", maximum=MAX_COUNT)
    num_chosen = fields.integer("expert_used_count")
    if num_chosen > num_experts:
        raise fields.wrong("expert_used_count", f"at most the {num_experts} experts")
    return MoEConfig(
        num_experts=num_experts,
        num_experts_per_token=num_chosen,
        intermediate_size=size or fields.integer("feed_forward_length"),
        norm_topk_prob=True,  # llama.cpp rescales for both architectures; no key says so
    )


def _rope_scaling(file: GGUFFile, fields: Fields) -> dict[str, Any] | None:
    """In Hugging Face's terms."""
    if "rope_freqs.weight" in file.tensors:
        return _llama3_scaling(file, _float32(fields, "rope.freq_base", 10000.0))
    kind = fields.string("rope.scaling.type") if "rope.scaling.type" in fields else "none"
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise fields.wrong("rope.scaling.type", "none, linear or yarn")
    scaling: dict[str, Any] = {
        "rope_type": kind,
        "factor": _float32(fields, "rope.scaling.factor", 1.0),
    }
    if kind == "yarn":
        if _float32(fields, "rope.scaling.attn_factor", 1.0) != 1.0:
            raise fields.wrong("rope.scaling.attn_factor", "1 or none")
        length = fields.optional_integer("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = length or fields.integer("context_length")
        for end in ("fast", "slow"):
            if f"rope.scaling.yarn_beta_{end}" in fields:
                scaling[f"beta_{end}"] = _float32(fields, f"rope.scaling.yarn_beta_{end}", 1.0)
    return scaling


def _llama3_scaling(file: GGUFFile, theta: float) -> dict[str, Any]:
    """Llama 3.1's scaling, of which the file holds the outcome: a divisor of every frequency."""
    tensor = file.tensors["rope_freqs.weight"]
    if tensor.ggml_type is not GGMLType.F32:
        raise ModelSourceError(
            f"{file.path}: rope_freqs.weight is {tensor.ggml_type.name}, not F32"
        )
    found = file.data(tensor.name).view("<f4").astype(np.float64)
    factor = float(found.max())
    if not np.allclose(found, _llama3_divisors(len(found), theta, factor), rtol=1e-3):
        raise ModelSourceError(
            f"{file.path}: rope_freqs.weight doesn't hold Llama 3's scaling, the only one supported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW_FREQ,
        "high_freq_factor": _LLAMA3_HIGH_FREQ,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_LENGTH,
    }


def _llama3_divisors(count: int, theta: float, factor: float) -> npt.NDArray[np.float64]:
    """Short wavelengths stay, long ones are stretched by `factor`, those between are blended."""
    wavelength = 2 * np.pi * theta ** (np.arange(count) / count)
    rotations = _LLAMA3_ORIGINAL_LENGTH / wavelength
    blend = (rotations - _LLAMA3_LOW_FREQ) / (_LLAMA3_HIGH_FREQ - _LLAMA3_LOW_FREQ)
    blend = blend.clip(0, 1)
    divisors: npt.NDArray[np.float64] = 1 / ((1 - blend) / factor + blend)
    return divisors


def _dtype(file: GGUFFile) -> str:
    """Of the matrices; bfloat16 for quantised ones, which came from it or lost as much already."""
    types = {tensor.ggml_type for tensor in file.tensors.values() if len(tensor.shape) > 1}
    for ggml_type in _FLOAT_DTYPES:
        if types == {ggml_type}:
            return _FLOAT_DTYPES[ggml_type]
    return "bfloat16"


def _eos_token_ids(file: GGUFFile) -> tuple[int, ...]:
    fields = Fields(file.metadata, str(file.path))
    ids = [
        fields.integer(key, minimum=0)
        for key in (f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))
        if key in fields
    ]
    if "tokenizer.ggml.tokens" in fields and "tokenizer.ggml.token_type" in fields:
        tokens = fields.strings("tokenizer.ggml.tokens")
        kinds = file.metadata["tokenizer.ggml.token_type"]
        if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
            raise ModelSourceError(f"{file.path}: has not one token type for each token")
        ids += [
            i
            for text in _END_OF_TURN
            if text in tokens and kinds[i := tokens.index(text)] == _CONTROL_TOKEN
        ]
    return tuple(dict.fromkeys(ids))
