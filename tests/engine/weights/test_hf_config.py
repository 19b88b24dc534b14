"""Against transformers' own configuration classes, whose defaults and spellings are the oracle."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.engine.model_config import ModelConfig, RopeConfig
from pagelet.engine.models.architectures import SUPPORTED_ARCHITECTURES
from pagelet.engine.weights import hf_config
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.protocol.errors import ModelSourceError
from support.quantized_files import compressed_tensors

CONFIG_CLASSES = {
    "LlamaForCausalLM": transformers.LlamaConfig,
    "MistralForCausalLM": transformers.MistralConfig,
    "MixtralForCausalLM": transformers.MixtralConfig,
    "Qwen2ForCausalLM": transformers.Qwen2Config,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
    "Qwen3MoeForCausalLM": transformers.Qwen3MoeConfig,
    "Gemma3ForCausalLM": transformers.Gemma3TextConfig,
}


def sliding_layers(theirs: Any) -> frozenset[int]:
    every = frozenset(range(theirs.num_hidden_layers))
    types = getattr(theirs, "layer_types", None)
    if getattr(theirs, "sliding_window", None) is None:
        return frozenset()
    return every if types is None else frozenset(i for i in every if types[i].startswith("sliding"))


def assert_equal(ours: ModelConfig, theirs: Any) -> None:
    heads = theirs.num_attention_heads
    assert ours.hidden_size == theirs.hidden_size
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.num_heads == heads
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // heads)
    assert ours.intermediate_size == theirs.intermediate_size
    assert ours.vocab_size == theirs.vocab_size
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_layers == sliding_layers(theirs)
    if ours.sliding_layers:
        assert ours.sliding_window == theirs.sliding_window
    else:
        assert ours.sliding_window is None
    eos = theirs.eos_token_id
    assert list(ours.eos_token_ids) == (
        eos if isinstance(eos, list) else [] if eos is None else [eos]
    )
    assert ours.bos_token_id == theirs.bos_token_id
    rope = theirs.rope_parameters
    if "full_attention" in rope:
        assert_rope_equal(ours.rope, rope["full_attention"])
        assert ours.local_rope is not None
        assert_rope_equal(ours.local_rope, rope["sliding_attention"])
    else:
        assert_rope_equal(ours.rope, rope)
        assert ours.local_rope is None


def assert_rope_equal(ours: RopeConfig, theirs: dict[str, Any]) -> None:
    assert ours.theta == theirs["rope_theta"]
    expected = {k: v for k, v in theirs.items() if k not in ("rope_theta", "type")}
    assert (ours.scaling or {"rope_type": "default"}) == expected


# What is set, beyond the defaults; each in the spelling of config.json.
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SUPPORTED_ARCHITECTURES),
    ("LlamaForCausalLM", {"num_key_value_heads": 8, "head_dim": 64, "rope_theta": 500000.0}),
    ("LlamaForCausalLM", {"rope_scaling": LLAMA3_ROPE, "rope_theta": 5e5}),
    ("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 5e5}}),
    ("LlamaForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("LlamaForCausalLM", {"eos_token_id": [128001, 128009], "bos_token_id": 128000}),
    ("MistralForCausalLM", {"sliding_window": None, "head_dim": 160}),
    ("MistralForCausalLM", {"sliding_window": 16, "num_hidden_layers": 2}),
    ("MixtralForCausalLM", {"sliding_window": 16, "num_hidden_layers": 2}),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 20}),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "max_window_layers": 32}),
    ("Qwen2ForCausalLM", {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
    (
        "Qwen3ForCausalLM",
        {
            "use_sliding_window": True,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    ("Qwen3ForCausalLM", {"attention_bias": True, "head_dim": 64}),
    ("Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 64}),
    ("Gemma3ForCausalLM", {"sliding_window_pattern": 3, "sliding_window": 512}),
    ("Gemma3ForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("Gemma3ForCausalLM", {"rope_theta": 2e6, "rope_local_base_freq": 5e3}),
    (
        "Gemma3ForCausalLM",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
]


@pytest.mark.parametrize(("architecture", "values"), VARIANTS)
def test_few_fields_give_what_transformers_gives(
    architecture: str, values: dict[str, Any], tmp_path: Path
) -> None:
    raw = json.dumps({"architectures": [architecture]} | values)
    (tmp_path / "config.json").write_text(raw)
    theirs = CONFIG_CLASSES[architecture].from_pretrained(tmp_path)
    ours = model_config_from_hf(json.loads(raw))
    assert ours.architecture == architecture
    assert_equal(ours, theirs)

    # And the same from what transformers 5 writes, where rope and defaults are spelt out.
    theirs.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert model_config_from_hf(written) == ours


def test_biases_norms_and_gemmas_factors() -> None:
    def config(architecture: str, **values: Any) -> ModelConfig:
        return model_config_from_hf({"architectures": [architecture]} | values)

    llama = config("LlamaForCausalLM", attention_bias=True)
    assert (llama.qkv_bias, llama.o_bias, llama.qk_norm) == (True, True, False)
    qwen2 = config("Qwen2ForCausalLM")
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = config("Qwen3ForCausalLM")
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm) == (False, False, True)
    gemma = config("Gemma3ForCausalLM", query_pre_attn_scalar=168, final_logit_softcapping=30.0)
    assert gemma.attention_scale == 168**-0.5
    assert gemma.embedding_scale == 2304**0.5
    assert (gemma.final_logit_softcap, gemma.attention_logit_softcap) == (30.0, None)
    assert gemma.norm_plus_one
    assert gemma.qk_norm
    assert gemma.hidden_act == "gelu_tanh"


def test_experts_and_dense_layers() -> None:
    raw = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 6,
        "num_experts": 16,
        "mlp_only_layers": [1],
        "decoder_sparse_step": 2,
        "norm_topk_prob": True,
    }
    moe = model_config_from_hf(raw).moe
    assert moe is not None
    assert (moe.num_experts, moe.num_experts_per_token, moe.intermediate_size) == (16, 8, 768)
    assert moe.norm_topk_prob
    # transformers: layer i is sparse if it isn't listed and (i + 1) is a multiple of the step.
    assert moe.dense_layers == {0, 1, 2, 4}
    mixtral = model_config_from_hf({"architectures": ["MixtralForCausalLM"]}).moe
    assert mixtral is not None
    assert (mixtral.num_experts, mixtral.num_experts_per_token) == (8, 2)
    assert mixtral.intermediate_size == 14336
    assert mixtral.norm_topk_prob
    assert not mixtral.dense_layers


def test_multimodal_gemma3_gives_its_text_model(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 7, "hidden_size": 128, "eos_token_id": 1}
    raw = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
        "eos_token_id": [1, 106],
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    ours = model_config_from_hf(raw)
    theirs = transformers.Gemma3Config.from_pretrained(tmp_path).text_config
    assert ours.architecture == "Gemma3ForCausalLM"
    assert ours.eos_token_ids == (1, 106)
    assert ours.checkpoint_dtype == "bfloat16"
    assert (ours.num_layers, ours.hidden_size) == (7, 128)
    assert ours.sliding_layers == sliding_layers(theirs)
    assert ours.vocab_size == theirs.vocab_size


def test_end_tokens_are_the_union_of_both_files() -> None:
    raw = {"architectures": ["LlamaForCausalLM"], "eos_token_id": 5}
    generation = {"eos_token_id": [7, 5], "temperature": 0.6, "top_k": 20, "do_sample": True}
    ours = model_config_from_hf(raw, generation)
    assert ours.eos_token_ids == (5, 7)
    assert ours.generation_defaults == {"temperature": 0.6, "top_k": 20}
    del raw["eos_token_id"]
    assert model_config_from_hf(raw, generation).eos_token_ids == (7, 5)


@pytest.mark.parametrize("name", ["bfloat16", "torch.bfloat16"])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_in_either_spelling(key: str, name: str) -> None:
    raw = {"architectures": ["LlamaForCausalLM"], key: name}
    assert model_config_from_hf(raw).checkpoint_dtype == "bfloat16"


def test_model_type_stands_in_for_missing_architectures() -> None:
    assert model_config_from_hf({"model_type": "qwen3"}).architecture == "Qwen3ForCausalLM"


def test_unknown_architecture_lists_the_supported_ones() -> None:
    with pytest.raises(ModelSourceError, match="MambaForCausalLM is not supported") as error:
        model_config_from_hf({"architectures": ["MambaForCausalLM"]})
    for name in SUPPORTED_ARCHITECTURES:
        assert name in str(error.value)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quantization_config": {"quant_method": "hqq"}}, r"by 'hqq'.*supported are: fp8.*GGUF"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "`bits` is 3, where 4 or 8"),
    ({"quantization_config": GPTQ | {"group_size": 0}}, "`group_size` is 0"),
    ({"quantization_config": GPTQ | {"dynamic": {"+:.*": {"bits": 8}}}}, "`dynamic` is"),
    ({"quantization_config": GPTQ | {"checkpoint_format": "marlin"}}, "gptq or gptq_v2"),
    ({"quantization_config": AWQ | {"version": "gemv"}}, "`version` is 'gemv', where gemm"),
    ({"quantization_config": AWQ | {"bits": 8}}, "`bits` is 8, where 4"),
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "block_size"),
    ({"quantization_config": compressed_tensors("nvfp4-pack-quantized", {})}, "`format` is 'nvfp4"),
    (
        {"quantization_config": compressed_tensors("pack-quantized", {"num_bits": 3})},
        r"group_0.weights`: `num_bits` is 3",
    ),
    (
        {
            "quantization_config": compressed_tensors("pack-quantized", {"num_bits": 4})
            | {"sparsity_config": {"format": "sparse-24-bitmask"}}
        },
        "sparsity_config`: `format`",
    ),
    ({"mlp_bias": True}, "`mlp_bias`"),
    ({"hidden_act": "relu"}, "`hidden_act` is 'relu'"),
    ({"hidden_size": "big"}, "`hidden_size` is 'big', where an integer"),
    ({"num_attention_heads": 0}, "`num_attention_heads` is 0"),
    ({"num_attention_heads": 6, "num_key_value_heads": 4}, "no multiple"),
    ({"rms_norm_eps": -1}, "`rms_norm_eps`"),
    ({"eos_token_id": ["</s>"]}, "`eos_token_id`"),
    ({"rope_scaling": [1]}, "`rope_scaling`"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ({"rope_scaling": {"rope_type": "su", "factor": 2.0}}, "`rope_type` is 'su'.*llama3"),
    ({"rope_scaling": {"type": "linear"}}, "`factor` is missing"),
    ({"rope_scaling": LLAMA3_ROPE | {"high_freq_factor": 1.0}}, "`high_freq_factor` is 1.0.*above"),
    ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_refusals_name_the_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelSourceError, match=message):
        model_config_from_hf({"architectures": ["LlamaForCausalLM"]} | values)


JSON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 4),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(["linear", "yarn", "llama3", "sliding_attention"]),
    st.lists(st.integers(-1, 3), max_size=2),
    st.dictionaries(
        st.sampled_from(["rope_type", "type", "factor", "rope_theta", "full_attention"]),
        st.one_of(st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=1)),
        max_size=3,
    ),
)
KEYS = st.sampled_from(
    sorted(
        {
            "rope_parameters",
            "rope_scaling",
            "original_max_position_embeddings",
            "partial_rotary_factor",
            "layer_types",
            "mlp_only_layers",
            "quantization_config",
            "dtype",
            "text_config",
            *(key for defaults in hf_config._DEFAULTS.values() for key in defaults),
        }
    )
)


@settings(max_examples=500)
@given(
    architecture=st.sampled_from([*SUPPORTED_ARCHITECTURES, "Gemma3ForConditionalGeneration"]),
    values=st.dictionaries(KEYS, JSON, min_size=1, max_size=3),
    generation=st.dictionaries(st.sampled_from(["eos_token_id", "top_k", "temperature"]), JSON),
)
def test_any_json_gives_a_config_or_the_one_error(
    architecture: str, values: dict[str, Any], generation: dict[str, Any]
) -> None:
    try:
        config = model_config_from_hf({"architectures": [architecture]} | values, generation)
    except ModelSourceError as error:
        message = str(error)
    else:
        assert config.num_heads % config.num_kv_heads == 0
        assert config.sliding_layers <= set(range(config.num_layers))
        return
    assert "config.json: " in message
