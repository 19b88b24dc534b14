"""GGUF files written as llama.cpp's converter writes them, read back as the models they came from.

The `gguf` package, which the converter uses, gives the file format and the tensors' names.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.engine.model_config import ModelConfig, RopeConfig
from pagelet.engine.models.architectures import SUPPORTED_ARCHITECTURES
from pagelet.engine.models.registry import build_model
from pagelet.engine.source import ModelFiles, resolve
from pagelet.engine.weights.gguf_config import model_config_from_gguf
from pagelet.engine.weights.gguf_file import GGUFFile
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.engine.weights.iterate import iterate_weights
from pagelet.engine.weights.load_config import load_model_config
from pagelet.engine.weights.quantized_tensor import QuantizedTensor, as_floats
from pagelet.protocol.errors import ModelSourceError
from support.gguf_files import write_gguf


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_round_trip(
    architecture: str,
    tmp_path: Path,
    make_tiny_model: Callable[..., Any],
    checkpoint_weights: Callable[[Any], dict[str, torch.Tensor]],
) -> None:
    model = make_tiny_model(architecture)
    expected = checkpoint_weights(model)
    hf = model.config.to_dict() | {"architectures": [architecture], "dtype": "float32"}
    config = model_config_from_hf(hf)
    path = tmp_path / "model.gguf"
    write_gguf(path, config, expected)

    files = resolve(str(path))
    assert files == ModelFiles(path, "gguf", "model")
    found_config = load_model_config(files)
    if architecture == "MistralForCausalLM":  # the file can't say that it is one, nor its window
        config = dataclasses.replace(
            config,
            architecture="LlamaForCausalLM",
            sliding_window=None,
            sliding_layers=frozenset(),
        )
    eos = (2, 127)  # with the turn's end, found by its text
    assert found_config == dataclasses.replace(config, eos_token_ids=eos)

    calls: list[tuple[int, int]] = []
    found = dict(iterate_weights(files, found_config, lambda *call: calls.append(call)))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if config.norm_plus_one and name.endswith("norm.weight"):
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=2e-7)
        else:
            assert torch.equal(found[name], tensor), name
    size = path.stat().st_size
    assert calls[-1] == (size, size)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    build_model(found_config, torch.float32, "cpu").load_weights(found.items())


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_quantised_round_trip(
    architecture: str,
    tmp_path: Path,
    make_tiny_model: Callable[..., Any],
    checkpoint_weights: Callable[[Any], dict[str, torch.Tensor]],
) -> None:
    """Rows are put in order, and experts cut apart, on packed blocks too."""
    model = make_tiny_model(architecture)
    expected = checkpoint_weights(model)
    config = model_config_from_hf(model.config.to_dict() | {"architectures": [architecture]})
    path = tmp_path / "model.gguf"
    write_gguf(path, config, expected, gguf.GGMLQuantizationType.Q8_0)
    files = resolve(str(path))
    found_config = load_model_config(files)
    assert found_config.checkpoint_dtype == "bfloat16"
    for name, tensor in iterate_weights(files, found_config):
        assert isinstance(tensor, QuantizedTensor) == (len(tensor.shape) == 2)
        torch.testing.assert_close(
            as_floats(tensor, torch.float32),
            expected.pop(name),
            rtol=0,
            atol=0.005,
            msg=lambda m, n=name: f"{n}: {m}",
        )
    assert not expected


@pytest.mark.parametrize("precision", ["F16", "BF16"])
def test_half_precision_stays_as_it_is(
    precision: str,
    tmp_path: Path,
    make_tiny_model: Callable[..., Any],
    checkpoint_weights: Callable[[Any], dict[str, torch.Tensor]],
) -> None:
    model = make_tiny_model("Qwen3ForCausalLM")
    hf = model.config.to_dict() | {"architectures": ["Qwen3ForCausalLM"]}
    path = tmp_path / "model.gguf"
    write_gguf(
        path,
        model_config_from_hf(hf),
        checkpoint_weights(model),
        gguf.GGMLQuantizationType[precision],
    )
    files = resolve(str(path))
    config = load_model_config(files)
    assert config.checkpoint_dtype == {"F16": "float16", "BF16": "bfloat16"}[precision]
    embedding = dict(iterate_weights(files, config))["model.embed_tokens.weight"]
    assert embedding.dtype == getattr(torch, config.checkpoint_dtype)


def metadata_file(path: Path, name: str, **values: Any) -> Path:
    """A file with one tensor, whose description of the model is complete but for `values`."""
    keys: dict[str, Any] = {
        "block_count": 6,
        "context_length": 4096,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 16,
    } | values
    writer = gguf.GGUFWriter(path, name)
    for key, value in keys.items():
        full = f"{name}.{key}"
        match value:
            case None:
                pass
            case str():
                writer.add_string(full, value)
            case int():
                writer.add_uint32(full, value)
            case float():
                writer.add_float32(full, value)
            case list():
                writer.add_array(full, value)
    writer.add_tensor("token_embd.weight", np.zeros((128, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_config(path: Path) -> ModelConfig:
    return model_config_from_gguf(GGUFFile(path))


def test_defaults_of_absent_keys(tmp_path: Path) -> None:
    config = read_config(metadata_file(tmp_path / "m.gguf", "llama"))
    assert config.num_kv_heads == 4
    assert config.head_dim == 16
    assert config.vocab_size == 128
    assert config.rms_norm_eps == 1e-5
    assert config.rope == RopeConfig(10000.0)
    assert config.tie_word_embeddings
    assert config.sliding_window is None
    assert config.eos_token_ids == ()


def test_gemma3s_windows(tmp_path: Path) -> None:
    by_default = read_config(metadata_file(tmp_path / "a.gguf", "gemma3"))
    assert by_default.sliding_layers == {0, 1, 2, 3, 4}
    assert by_default.window(0) == 16
    assert by_default.window(5) is None
    key = "attention.sliding_window_pattern"
    period = read_config(metadata_file(tmp_path / "b.gguf", "gemma3", **{key: 2}))
    assert period.sliding_layers == {0, 2, 4}
    flags = {key: [True, False, False, True, True, True]}
    assert read_config(metadata_file(tmp_path / "c.gguf", "gemma3", **flags)).sliding_layers == {
        0,
        3,
        4,
        5,
    }


def test_gemma3s_scale_differs_for_its_27b_model(tmp_path: Path) -> None:
    key_length = {"attention.key_length": 32}
    small = read_config(metadata_file(tmp_path / "a.gguf", "gemma3", **key_length))
    assert small.attention_scale == 32**-0.5
    large = metadata_file(tmp_path / "b.gguf", "gemma3", block_count=62, **key_length)
    assert read_config(large).attention_scale == (64 / 4) ** -0.5


def test_rope_scaling(tmp_path: Path) -> None:
    yarn: dict[str, Any] = {
        "rope.freq_base": 1e6,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 1024,
    }
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    config = read_config(metadata_file(tmp_path / "a.gguf", "qwen2", **yarn))
    assert config.rope == RopeConfig(1e6, scaling)
    linear: dict[str, Any] = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    config = read_config(metadata_file(tmp_path / "b.gguf", "gemma3", **linear))
    assert config.rope == RopeConfig(10000.0, {"rope_type": "linear", "factor": 8.0})
    assert config.local_rope == RopeConfig(10000.0)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mamba", {}, r"architecture mamba .*Qwen3MoeForCausalLM"),
    ("llama", {"block_count": None}, "`block_count` is missing"),
    ("llama", {"embedding_length": "wide"}, "`embedding_length` is 'wide'"),
    ("llama", {"attention.head_count_kv": 3}, "`attention.head_count_kv` is 3"),
    ("llama", {"attention.head_count": [4, 4, 4, 2, 2, 2]}, "`attention.head_count` is"),
    ("llama", {"rope.dimension_count": 8}, "`rope.dimension_count` is 8"),
    ("llama", {"rope.scaling.type": "longrope"}, "`rope.scaling.type` is 'longrope'"),
    ("llama", {"expert_count": 4, "expert_used_count": 5}, "at most the 4 experts"),
    ("qwen3moe", {}, "`expert_count` is missing"),
]


@pytest.mark.parametrize(("name", "values", "message"), REFUSED)
def test_refusals_name_file_and_key(
    name: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = metadata_file(tmp_path / "m.gguf", name, **values)
    with pytest.raises(ModelSourceError, match=message) as error:
        read_config(path)
    assert str(path) in str(error.value)


VALUES = st.one_of(
    st.none(),
    st.integers(0, 5),
    st.integers(0, 2**32 - 1),
    st.floats(width=32),
    st.sampled_from(["none", "linear", "yarn", "x"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
KEYS = st.sampled_from(
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "expert_count",
        "expert_used_count",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
    ]
)


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    name=st.sampled_from(["llama", "qwen2", "qwen3", "qwen3moe", "gemma3"]),
    values=st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
)
def test_any_metadata_gives_a_config_or_the_one_error(
    name: str, values: dict[str, Any], tmp_path: Path
) -> None:
    path = metadata_file(tmp_path / "m.gguf", name, **values)
    try:
        config = read_config(path)
    except ModelSourceError as error:
        message = str(error)
    else:
        assert config.num_heads % config.num_kv_heads == 0
        assert config.sliding_layers <= set(range(config.num_layers))
        return
    assert str(path) in message


def test_rows_that_are_no_whole_heads(tmp_path: Path) -> None:
    config = read_config(metadata_file(tmp_path / "m.gguf", "llama"))
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((60, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = ModelFiles(tmp_path / "odd.gguf", "gguf", "odd")
    with pytest.raises(
        ModelSourceError, match=r"has 60 rows, where the metadata says 4 heads of 16"
    ):
        list(iterate_weights(files, config))


def test_tensor_that_the_model_does_not_have(tmp_path: Path) -> None:
    config = read_config(metadata_file(tmp_path / "m.gguf", "llama"))
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    writer.add_tensor("blk.0.ssm_in.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = ModelFiles(tmp_path / "odd.gguf", "gguf", "odd")
    with pytest.raises(ModelSourceError, match=r"odd.gguf: tensor 'blk.0.ssm_in.weight'"):
        list(iterate_weights(files, config))


def test_real_model_equals_transformers_reading_of_it(smollm2: Path) -> None:
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    files = resolve(str(smollm2))
    config = load_model_config(files)
    theirs = transformers.LlamaConfig(
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        hidden_size=config.hidden_size,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(theirs)
    loaded = load_gguf_checkpoint(str(smollm2), return_tensors=True, model_to_load=model)
    for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"):
        ours = "num_layers" if key == "num_hidden_layers" else key
        assert loaded["config"][key] == getattr(config, ours)
    expected = loaded["tensors"]
    found = dict(iterate_weights(files, config))
    assert found.keys() == expected.keys() - {"lm_head.weight"}
    for name, tensor in found.items():
        assert torch.equal(as_floats(tensor, torch.float32), expected[name]), name
