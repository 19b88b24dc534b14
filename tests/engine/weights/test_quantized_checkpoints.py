"""FP8, GPTQ, AWQ and compressed-tensors checkpoints are the models that their numbers stand for."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagelet.engine.layers.moe import SparseMoE
from pagelet.engine.layers.placement import Packing
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.registry import build_model
from pagelet.engine.source import ModelFiles, resolve
from pagelet.engine.weights.iterate import iterate_weights
from pagelet.engine.weights.load_config import load_model_config
from pagelet.engine.weights.quantized_tensor import QuantizedTensor, StoredTensor, as_floats
from pagelet.kernels.linear import grouped_linear, packed_reference
from pagelet.kernels.moe import moe
from pagelet.protocol.errors import ModelSourceError
from support.paged import PagedHarness, logits_of_all
from support.quantized_files import FORMATS

Write = Callable[..., tuple[Any, Path]]


@pytest.fixture
def write(
    tmp_path: Path,
    make_tiny_model: Callable[..., Any],
    checkpoint_weights: Callable[[Any], dict[str, torch.Tensor]],
) -> Write:
    """A tiny model's checkpoint in a format of `FORMATS`, over several files, and the model of
    transformers with the numbers that the checkpoint stands for."""

    def make(format_name: str, architecture: str = "Qwen2ForCausalLM") -> tuple[Any, Path]:
        model = make_tiny_model(architecture)
        quantization = FORMATS[format_name]
        tensors: dict[str, torch.Tensor] = {}
        rounded = {}
        for name, weight in checkpoint_weights(model).items():
            module = name.rpartition(".")[0]
            kept = weight.ndim != 2 or "embed" in name or "lm_head" in name
            if kept or module.endswith(".gate"):  # a mixture's router
                tensors[name] = weight.clone()
                continue
            pieces, floats = quantization.quantize(weight)
            tensors |= {f"{module}.{piece}": tensor for piece, tensor in pieces.items()}
            rounded[name] = floats
        set_weights(model, rounded)
        (tmp_path / "config.json").write_text(
            json.dumps(model.config.to_dict() | {"quantization_config": quantization.config})
        )
        write_shards(tmp_path, tensors)
        return model, tmp_path

    return make


def set_weights(model: Any, rounded: dict[str, torch.Tensor]) -> None:
    state = model.state_dict()
    for name, floats in rounded.items():
        prefix, found, expert = name.partition(".experts.")
        if not found:
            state[name].copy_(floats)
            continue
        index, matrix, _ = expert.split(".")
        if matrix == "down_proj":
            state[f"{prefix}.experts.down_proj"][int(index)] = floats
        else:
            half = state[f"{prefix}.experts.gate_up_proj"][int(index)].chunk(2)
            half[matrix == "up_proj"].copy_(floats)


def write_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """In random order over three files, so that the tensors of a matrix lie apart."""
    names = sorted(tensors)
    random.Random(0).shuffle(names)
    files = [f"model-0000{i + 1}-of-00003.safetensors" for i in range(3)]
    for i, file in enumerate(files):
        save_file({name: tensors[name].contiguous() for name in names[i::3]}, folder / file)
    weight_map = {name: files[i % 3] for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def load(folder: Path) -> tuple[ModelFiles, ModelConfig, dict[str, StoredTensor]]:
    files = resolve(str(folder))
    config = load_model_config(files)
    return files, config, dict(iterate_weights(files, config))


@pytest.mark.parametrize("format_name", FORMATS)
@torch.inference_mode()
def test_logits_are_those_of_transformers_with_the_same_numbers(
    format_name: str, write: Write
) -> None:
    oracle, folder = write(format_name)
    check_logits(oracle, folder)


@pytest.mark.parametrize("keep_quantized", [False, True])
@pytest.mark.parametrize("format_name", ["fp8-blocks", "awq", "gptq-4-order"])
@torch.inference_mode()
def test_mixtures_of_experts(format_name: str, write: Write, keep_quantized: bool) -> None:
    oracle, folder = write(format_name, "Qwen3MoeForCausalLM")
    check_logits(oracle, folder, keep_quantized=keep_quantized)


KEPT = {"q4": "int4", "q8": "int8", None: None}


def kind_on_a_gpu(format_name: str) -> str | None:
    """What matrices are kept as; None for floats. Blocks of 40 inputs suit no kernel."""
    if "fp8" in format_name and format_name != "fp8-blocks":
        return "fp8"
    if format_name.endswith("-order"):
        return "int8" if "8" in format_name else "int4"
    return KEPT[FORMATS[format_name].exact]


@pytest.mark.parametrize("format_name", FORMATS)
@torch.inference_mode()
def test_weights_that_stay_quantised_give_the_same_logits(format_name: str, write: Write) -> None:
    """As on a GPU, here by the reference of its product."""
    oracle, folder = write(format_name)
    model = check_logits(oracle, folder, keep_quantized=True)
    kind = kind_on_a_gpu(format_name)
    assert model.linear_formats == ({kind} if kind else set())
    widened = check_logits(oracle, folder)
    assert (model.weight_bytes < widened.weight_bytes) == (kind is not None)


@pytest.mark.parametrize("format_name", ["awq", "ct-fp8-blocks"])
@torch.inference_mode()
def test_triton_kernels_give_the_same_logits(
    format_name: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the products and of the mixture, in the interpreter."""
    oracle, folder = write(format_name, "Qwen3MoeForCausalLM")
    for op in (grouped_linear, moe):
        monkeypatch.setattr(op, "_by_device", {"cpu": op.implementations["triton"]})
    model: Any = check_logits(oracle, folder, keep_quantized=True)
    kind = kind_on_a_gpu(format_name)
    assert model.linear_formats == {kind}
    mixtures = [layer.mlp for layer in model.layers.values() if isinstance(layer.mlp, SparseMoE)]
    assert mixtures
    for mixture in mixtures:
        assert mixture.gate_up.formats == mixture.down.formats == {kind}


def check_logits(oracle: Any, folder: Path, *, keep_quantized: bool = False) -> CausalLM:
    files, config, _ = load(folder)
    model = build_model(config, torch.float32, "cpu", keep_quantized=keep_quantized)
    model.load_weights(iterate_weights(files, config))
    rng = random.Random(0)
    harness = PagedHarness(config, torch.float32, rng)
    tokens = [rng.randrange(config.vocab_size) for _ in range(21)]
    harness.add(tokens)
    found = logits_of_all(model, harness, rng)[0]
    expected = oracle(torch.tensor([tokens])).logits[0]
    assert expected.std() > 0.05
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    return model


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_cpu_library_holds_the_same_numbers_where_it_can(
    format_name: str, write: Write
) -> None:
    """Otherwise it rounds them to 8 bits."""
    oracle, folder = write(format_name)
    files, config, _ = load(folder)
    packing = Packing("f32", keep_quantized=True)
    model: Any = build_model(config, torch.float32, "cpu", packing=packing, head_packing=packing)
    model.load_weights(iterate_weights(files, config))
    exact = FORMATS[format_name].exact
    state = oracle.state_dict()
    layer = model.layers[1]
    for weight, names in (
        (
            layer.attention.qkv_proj.weight,
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ),
        (layer.mlp.gate_up_proj.weight, ("mlp.gate_proj", "mlp.up_proj")),
        (layer.mlp.down_proj.weight, ("mlp.down_proj",)),
    ):
        expected = torch.cat([state[f"model.layers.1.{name}.weight"] for name in names]).double()
        found = torch.cat([packed_reference.unpack(packed) for packed in weight.packed])
        bound = 2**-22 if exact else 1 / 240
        assert (found - expected).abs().max() <= bound * expected.abs().max()
        assert {packed.format for packed in weight.packed} == {exact or "q8"}


@pytest.mark.parametrize("format_name", FORMATS)
def test_pieces_of_ranks_are_pieces_of_the_whole(format_name: str, write: Write) -> None:
    """At sizes that split words, groups and blocks, too; and rows that pad a vocabulary."""
    _, folder = write(format_name)
    for name, tensor in load(folder)[2].items():
        if not isinstance(tensor, QuantizedTensor):
            continue
        whole = as_floats(tensor, torch.float32)
        assert whole.shape == tuple(tensor.shape)
        rng = random.Random(name)
        for _ in range(3):
            part: QuantizedTensor = tensor
            expected = whole
            for dim in (0, 1, rng.randrange(2)):
                start = rng.randrange(part.shape[dim])
                length = rng.randint(1, part.shape[dim] - start)
                part, expected = (
                    part.narrow(dim, start, length),
                    expected.narrow(dim, start, length),
                )
            assert torch.equal(part.dequantize(torch.float32), expected)
        padded = tensor.narrow(0, 5, 9).pad_rows(3).dequantize(torch.float32)
        assert torch.equal(padded, torch.cat([whole[5:14], torch.zeros(3, whole.shape[1])]))


def test_biases_of_zeros_are_none(write: Write) -> None:
    """GPTQ's tools store one for every layer."""
    _, folder = write("gptq-4")
    _, config, tensors = load(folder)
    model = build_model(config, torch.float32, "cpu")
    name = "model.layers.0.mlp.down_proj.bias"
    model.load_weights((tensors | {name: torch.zeros(config.hidden_size)}).items())
    with pytest.raises(ValueError, match=f"1 unexpected: {name}"):
        model.load_weights((tensors | {name: torch.ones(config.hidden_size)}).items())


def damaged(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """One thing wrong each time, and what the error says of it."""
    at = "model.layers.1.mlp.up_proj"
    for piece in [name.removeprefix(f"{at}.") for name in tensors if name.startswith(at)]:
        name = f"{at}.{piece}"
        tensor = tensors[name]
        if piece not in ("input_scale", "g_idx", "weight_zero_point"):
            without = {key: value for key, value in tensors.items() if key != name}
            yield f"{at}.* is missing|stored as|up_proj: it has scales", without
        if tensor.ndim == 2:
            yield rf"{at}(\.weight)?: ", tensors | {name: tensor[:, :-1]}
        if piece == "g_idx":
            yield f"{at}: the order of", tensors | {name: tensor + 1}


@pytest.mark.parametrize("format_name", ["fp8-blocks", "ct-int4-zeros", "gptq-4", "awq"])
def test_tensors_that_do_not_fit_are_named(format_name: str, write: Write) -> None:
    _, folder = write(format_name)
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    count = 0
    for message, broken in damaged(tensors):
        write_shards(folder, broken)
        with pytest.raises((ModelSourceError, ValueError), match=message):
            build_model(load_model_config(resolve(str(folder))), torch.float32, "cpu").load_weights(
                load(folder)[2].items()
            )
        count += 1
    assert count >= 3
