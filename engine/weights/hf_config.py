"""ModelConfig from a Hugging Face `config.json` and `generation_config.json`.

A field that is absent gets the value that transformers' configuration class gives it; `null` is not
absent. Both spellings of rotary embeddings are read: `rope_theta` with `rope_scaling`, and the
`rope_parameters` of transformers 5, which Gemma 3 nests by kind of layer.
"""

from typing import Any, Final, Literal

from pagelet.engine.model_config import ModelConfig, MoEConfig, RopeConfig
from pagelet.engine.models.architectures import SUPPORTED_ARCHITECTURES
from pagelet.engine.weights.fields import MAX_COUNT, Fields
from pagelet.engine.weights.stored_quantization import read_quantization
from pagelet.protocol.errors import ModelSourceError

_LLAMA: Final[dict[str, Any]] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MISTRAL: Final = _LLAMA | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096 * 32,
    "sliding_window": 4096,
}
_QWEN2: Final = _LLAMA | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "bos_token_id": None,
    "eos_token_id": None,
}
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "MixtralForCausalLM": _MISTRAL
    | {
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
    },
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN2 | {"head_dim": 128},
    "Qwen3MoeForCausalLM": _QWEN2
    | {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
    },
    "Gemma3ForCausalLM": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
}
_MULTIMODAL_GEMMA3: Final = "Gemma3ForConditionalGeneration"
_OTHER_HEADS: Final[dict[str, Literal["none", "score"]]] = {
    "Model": "none",
    "ForSequenceClassification": "score",
}
_BY_MODEL_TYPE: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": _MULTIMODAL_GEMMA3,
}
_ACTIVATIONS: Final[dict[str, Literal["silu", "gelu_tanh"]]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_SAMPLING_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# Ways of stretching rotary embeddings, and the fields without which they mean nothing.
_ROPE_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
# These need to know the length that the model was first trained for.
_RESCALED_ROPE_TYPES: Final = ("llama3", "yarn")


def model_config_from_hf(
    config: dict[str, Any], generation_config: dict[str, Any] | None = None
) -> ModelConfig:
    """Reads the two files' contents. Raises ModelSourceError for an architecture, an activation or
    a quantisation that there is no code for, and for fields of the wrong type."""
    architecture, head = _architecture(config)
    quantization = read_quantization(config)
    if architecture == _MULTIMODAL_GEMMA3:
        # The language model alone: what it says about itself, under what is said about the whole.
        architecture = "Gemma3ForCausalLM"
        text = Fields(config, "config.json").mapping("text_config")
        quantization = quantization or read_quantization(text)
        shared = ("tie_word_embeddings", "dtype", "torch_dtype", "eos_token_id", "bos_token_id")
        config = text | {key: config[key] for key in shared if config.get(key) is not None}
    fields = Fields(_DEFAULTS[architecture] | _with_one_name_for_experts(config), "config.json")
    gemma = architecture == "Gemma3ForCausalLM"
    _refuse_variants(fields)
    hidden_size = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_COUNT)
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.optional_integer("num_key_value_heads") or num_heads
    if num_heads % num_kv_heads:
        raise ModelSourceError(
            f"config.json: {num_heads} attention heads are no multiple of "
            f"{num_kv_heads} key-value heads"
        )
    bias = architecture not in ("MistralForCausalLM", "MixtralForCausalLM") and fields.boolean(
        "attention_bias"
    )
    window, sliding_layers = _sliding_window(architecture, fields, num_layers)
    rope, local_rope = _rope(fields, gemma)
    eos = Fields(config, "config.json").token_ids("eos_token_id")
    generation = Fields(generation_config or {}, "generation_config.json")
    eos += generation.token_ids("eos_token_id")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=fields.optional_integer("head_dim") or hidden_size // num_heads,
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=rope,
        local_rope=local_rope,
        tie_word_embeddings=fields.boolean("tie_word_embeddings"),
        qkv_bias=bias or architecture == "Qwen2ForCausalLM",
        o_bias=bias and architecture != "Qwen2ForCausalLM",
        qk_norm=architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM") or gemma,
        hidden_act=_activation(fields, "hidden_activation" if gemma else "hidden_act"),
        sliding_window=window,
        sliding_layers=sliding_layers,
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5 if gemma else None,
        attention_logit_softcap=fields.optional_number("attn_logit_softcapping") if gemma else None,
        final_logit_softcap=fields.optional_number("final_logit_softcapping") if gemma else None,
        embedding_scale=hidden_size**0.5 if gemma else None,
        norm_plus_one=gemma,
        moe=_moe(architecture, fields, num_layers),
        head=head,
        num_labels=_num_labels(config) if head == "score" else 0,
        checkpoint_dtype=_dtype(config),
        quantization=quantization,
        eos_token_ids=tuple(dict.fromkeys(eos)) or fields.token_ids("eos_token_id"),
        bos_token_id=fields.optional_integer("bos_token_id", minimum=0),
        generation_defaults={
            key: generation.finite(key) for key in _SAMPLING_DEFAULTS if key in generation
        },
    )


def _architecture(config: dict[str, Any]) -> tuple[str, Literal["lm", "none", "score"]]:
    """The name of the model with a language-model head, and which head this checkpoint has."""
    fields = Fields(config, "config.json")
    if "architectures" in fields:
        found = fields.strings("architectures")
    else:
        model_type = fields.string("model_type") if "model_type" in fields else "none named"
        found = [_BY_MODEL_TYPE.get(model_type, model_type)]
    for name in found:
        if name in SUPPORTED_ARCHITECTURES or name == _MULTIMODAL_GEMMA3:
            return name, "lm"
        for suffix, head in _OTHER_HEADS.items():
            stem = name.removesuffix(suffix).removesuffix("Text")
            if name.endswith(suffix) and f"{stem}ForCausalLM" in SUPPORTED_ARCHITECTURES:
                return f"{stem}ForCausalLM", head
    raise unsupported_architecture(", ".join(found))


def _num_labels(config: dict[str, Any]) -> int:
    """As transformers' configuration: from the names of the labels, which are two unless said."""
    fields = Fields(config, "config.json")
    return fields.optional_integer("num_labels") or len(fields.mapping("id2label")) or 2


def unsupported_architecture(name: str) -> ModelSourceError:
    """The error for an architecture that has no model here; it lists those that have."""
    supported = ", ".join((*SUPPORTED_ARCHITECTURES, f"{_MULTIMODAL_GEMMA3} (its text model)"))
    return ModelSourceError(f"architecture {name} is not supported; supported are: {supported}")


def _refuse_variants(fields: Fields) -> None:
    """Options of these architectures that no model here implements."""
    if "mlp_bias" in fields and fields.boolean("mlp_bias"):
        raise fields.wrong("mlp_bias", "false (an MLP with biases is not supported)")
    if "use_bidirectional_attention" in fields and fields.boolean("use_bidirectional_attention"):
        raise fields.wrong("use_bidirectional_attention", "false (this model embeds text)")
    if "is_causal" in fields and not fields.boolean("is_causal"):
        raise fields.wrong("is_causal", "true (a token that sees later ones is not supported)")
    if "partial_rotary_factor" in fields and fields.number("partial_rotary_factor") != 1:
        raise fields.wrong("partial_rotary_factor", "1 (rotating a part is not supported)")


def _with_one_name_for_experts(config: dict[str, Any]) -> dict[str, Any]:
    if "num_experts" not in config:
        return config
    return {"num_local_experts": config["num_experts"]} | config


def _activation(fields: Fields, key: str) -> Literal["silu", "gelu_tanh"]:
    name = fields.string(key)
    if name not in _ACTIVATIONS:
        raise fields.wrong(key, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _dtype(config: dict[str, Any]) -> str:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    name = name.removeprefix("torch.")
    if name not in ("bfloat16", "float16", "float32", "float64"):
        raise ModelSourceError(f"config.json: a checkpoint in {name} can't be loaded")
    return name


def _sliding_window(
    architecture: str, fields: Fields, num_layers: int
) -> tuple[int | None, frozenset[int]]:
    """The window, and the layers that have it; (None, none) where every layer attends to all."""
    window = fields.optional_integer("sliding_window")
    every = frozenset(range(num_layers))
    if architecture == "LlamaForCausalLM" or window is None:
        return None, frozenset()
    if architecture in ("MistralForCausalLM", "MixtralForCausalLM"):
        return window, every
    if architecture != "Gemma3ForCausalLM" and not fields.boolean("use_sliding_window"):
        return None, frozenset()
    if architecture == "Qwen3MoeForCausalLM":
        return window, every
    if "layer_types" in fields:
        types = fields.strings("layer_types")
        if len(types) != num_layers or not {*types} <= {"sliding_attention", "full_attention"}:
            raise fields.wrong(
                "layer_types",
                f"a list of {num_layers} times `sliding_attention` or `full_attention`",
            )
        layers = frozenset(i for i in every if types[i] == "sliding_attention")
    elif architecture == "Gemma3ForCausalLM":
        pattern = fields.integer("sliding_window_pattern")
        layers = frozenset(i for i in every if (i + 1) % pattern)
    else:
        first = fields.integer("max_window_layers", minimum=0)
        layers = frozenset(i for i in every if i >= first)
    return (window, layers) if layers else (None, layers)


def _rope(fields: Fields, gemma: bool) -> tuple[RopeConfig, RopeConfig | None]:
    """Rotary embedding of full-attention layers, and of sliding ones where that has its own."""
    theta = fields.number("rope_theta")
    parameters = fields.mapping("rope_scaling") or fields.mapping("rope_parameters")
    if not gemma:
        return _rope_config(fields, parameters, theta), None
    local_theta = fields.number("rope_local_base_freq")
    nested = Fields(fields.mapping("rope_parameters"), "config.json: `rope_parameters`")
    full = nested.mapping("full_attention") | fields.mapping("rope_scaling")
    return (
        _rope_config(fields, full, theta),
        _rope_config(fields, nested.mapping("sliding_attention"), local_theta),
    )


def _rope_config(fields: Fields, parameters: dict[str, Any], theta: float) -> RopeConfig:
    """Of one kind of layer; `scaling` always has a `rope_type`."""
    given = Fields(parameters, "config.json: rotary embedding")
    if "rope_theta" in given:
        theta = given.number("rope_theta")
    if "partial_rotary_factor" in given and given.number("partial_rotary_factor") != 1:
        raise given.wrong("partial_rotary_factor", "1 (rotating a part is not supported)")
    key = "rope_type" if "rope_type" in given else "type"
    rope_type = given.string(key) if key in given else "default"
    if rope_type == "default":
        return RopeConfig(theta)
    if rope_type not in _ROPE_TYPES:
        raise given.wrong(key, f"one of default, {', '.join(_ROPE_TYPES)}")
    for needed in _ROPE_TYPES[rope_type]:
        given.number(needed)
    low, high = "low_freq_factor", "high_freq_factor"
    if rope_type == "llama3" and given.number(high) <= given.number(low):
        raise given.wrong(high, f"a number above `{low}`")
    scaling = {k: v for k, v in parameters.items() if k not in ("rope_theta", "type")}
    scaling["rope_type"] = rope_type
    if rope_type in _RESCALED_ROPE_TYPES:
        length = "original_max_position_embeddings"
        if length in fields:
            scaling[length] = fields.integer(length)
        elif length in given:
            scaling[length] = given.integer(length)
        else:
            scaling[length] = fields.integer("max_position_embeddings")
    return RopeConfig(theta, scaling)


def _moe(architecture: str, fields: Fields, num_layers: int) -> MoEConfig | None:
    if architecture == "MixtralForCausalLM":
        intermediate_size, norm_topk_prob = fields.integer("intermediate_size"), True
        dense_layers: frozenset[int] = frozenset()
    elif architecture == "Qwen3MoeForCausalLM":
        intermediate_size = fields.integer("moe_intermediate_size")
        norm_topk_prob = fields.boolean("norm_topk_prob")
        step = fields.integer("decoder_sparse_step")
        dense = set(fields.integers("mlp_only_layers"))
        dense_layers = frozenset(i for i in range(num_layers) if i in dense or (i + 1) % step)
    else:
        return None
    num_experts = fields.integer("num_local_experts", maximum=MAX_COUNT)
    num_chosen = fields.integer("num_experts_per_tok")
    if num_chosen > num_experts:
        raise fields.wrong("num_experts_per_tok", f"at most the {num_experts} experts")
    return MoEConfig(num_experts, num_chosen, intermediate_size, norm_topk_prob, dense_layers)
