"""A GGUF file's quantised blocks stay what they are, from the file to the packed weights."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from pagelet.engine.layers.context import ALONE, SINGLE, Ranks, TensorParallel
from pagelet.engine.layers.linear_weight import LinearWeight
from pagelet.engine.layers.placement import Packing
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.registry import build_model
from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.hf_config import model_config_from_hf
from pagelet.engine.weights.iterate import iterate_weights
from pagelet.engine.weights.load_config import load_model_config
from pagelet.kernels.linear import packed_reference
from support.gguf_files import write_gguf
from support.paged import PagedHarness, logits_of_all, recorded_forward

KEPT = {"Q4_0": "q4", "Q4_1": "q4", "Q4_K": "q4", "Q5_0": "q8", "Q8_0": "q8"}
ROUNDED = ("Q5_1", "Q5_K", "Q6_K")
KEEP = Packing("f32", keep_quantized=True)
WriteModel = Callable[[str, str], tuple[ModelFiles, ModelConfig]]


@pytest.fixture
def write_model(
    tmp_path: Path,
    make_tiny_model: Callable[..., Any],
    checkpoint_weights: Callable[[Any], dict[str, torch.Tensor]],
) -> WriteModel:
    """A small model of an architecture in a GGUF file of a type."""

    def write(architecture: str, type_name: str) -> tuple[ModelFiles, ModelConfig]:
        model = make_tiny_model(
            architecture,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            head_dim=64,
            **({"rope_parameters": None} if architecture == "LlamaForCausalLM" else {}),
        )
        hf = model.config.to_dict() | {"architectures": [architecture]}
        files = ModelFiles(tmp_path / f"{type_name}.gguf", "gguf", "model")
        weights = checkpoint_weights(model)
        config = model_config_from_hf(hf)
        write_gguf(files.path, config, weights, gguf.GGMLQuantizationType[type_name])
        return files, load_model_config(files)

    return write


def load(
    files: ModelFiles,
    config: ModelConfig,
    packing: Packing | None,
    tp: TensorParallel = SINGLE,
) -> CausalLM:
    model = build_model(config, torch.float32, "cpu", Ranks(tp), packing, packing)
    model.load_weights(iterate_weights(files, config))
    return model


def linear_weights(model: Any) -> Iterator[LinearWeight]:
    for layer in model.layers.values():
        yield from (layer.attention.qkv_proj.weight, layer.attention.o_proj.weight)
        yield from (layer.mlp.gate_up_proj.weight, layer.mlp.down_proj.weight)
    yield model.lm_head.weight


def unpack(weight: LinearWeight) -> torch.Tensor:
    return torch.cat([packed_reference.unpack(packed) for packed in weight.packed])


@pytest.mark.parametrize("type_name", [*KEPT, *ROUNDED])
@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM"]
)
@torch.inference_mode()
def test_packed_weights_and_logits_are_those_of_the_file(
    architecture: str, type_name: str, write_model: WriteModel
) -> None:
    files, config = write_model(architecture, type_name)
    kept, floats = load(files, config, KEEP), load(files, config, None)
    for packed, plain in zip(linear_weights(kept), linear_weights(floats), strict=True):
        expected = plain.tensor.double()
        error = (unpack(packed) - expected).abs().max()
        # The file's numbers, but for float32's rounding of the sum; or 1 of 254 steps of a group.
        bound = 2**-23 if type_name in KEPT else 1 / 240
        assert error <= bound * expected.abs().max()
        assert {part.format for part in packed.packed} == {KEPT.get(type_name, "q8")}

    logits = []
    for model in (kept, floats):
        rng = random.Random(0)
        harness = PagedHarness(config, torch.float32, rng, block_size=16)
        harness.add([rng.randrange(config.vocab_size) for _ in range(40)])
        forward = recorded_forward(model, harness) if model is kept else None
        logits.append(logits_of_all(model, harness, rng, forward)[0].flatten())
    # Activations are rounded to 8 bits before each product.
    assert torch.corrcoef(torch.stack(logits))[0, 1] > 0.998


@pytest.mark.parametrize("type_name", ["Q4_1", "Q4_K", "Q8_0", "Q6_K"])
def test_ranks_hold_the_rows_and_columns_of_the_whole(
    type_name: str, write_model: WriteModel
) -> None:
    """A shard of 128 columns is half a block of Q4_K and Q6_K."""
    files, config = write_model("LlamaForCausalLM", type_name)

    def reduce_nothing(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("loading needs no other rank")

    whole = load(files, config, KEEP)
    ranks = [
        load(files, config, KEEP, TensorParallel(rank, 2, reduce_nothing, reduce_nothing))
        for rank in range(2)
    ]
    weights = zip(linear_weights(whole), *map(linear_weights, ranks), strict=True)
    for index, (full, *parts) in enumerate(weights):
        expected, halves = unpack(full), [unpack(part) for part in parts]
        if full.in_size != parts[0].in_size:
            assert torch.equal(torch.cat(halves, dim=1), expected)
            continue
        # The projections of one input: q, k and v, or gate and up; or the head alone.
        sizes = ([256, 128, 128], [512, 512])[index % 4 // 2] if index < 8 else [128]
        for piece, *shards in zip(
            expected.split(sizes),
            *(half.split([size // 2 for size in sizes]) for half in halves),
            strict=True,
        ):
            assert torch.equal(torch.cat(shards), piece)


def test_projections_of_different_types_are_products_of_their_own(
    write_model: WriteModel,
) -> None:
    """Files have mixtures: of Q4_K_M some layers' values are Q6_K where queries are Q4_K."""
    other = dict(iterate_weights(*write_model("Qwen3ForCausalLM", "Q6_K")))
    files, config = write_model("Qwen3ForCausalLM", "Q4_K")
    tensors = dict(iterate_weights(files, config))
    models = []
    for packing in (KEEP, None):
        model = build_model(config, torch.float32, "cpu", ALONE, packing, packing)
        model.load_weights(
            (name, other[name] if "v_proj" in name else tensor) for name, tensor in tensors.items()
        )
        models.append(model)
    packed, plain = (next(linear_weights(model)) for model in models)
    assert [(part.format, part.out_size) for part in packed.packed] == [("q4", 384), ("q8", 128)]
    error = (unpack(packed) - plain.tensor.double()).abs()
    assert error[:384].max() <= 2**-23 * plain.tensor.abs().max()
    assert error[384:].max() <= plain.tensor.abs().max() / 240


def test_bytes_in_memory_are_those_of_the_blocks(write_model: WriteModel) -> None:
    files, config = write_model("Qwen3ForCausalLM", "Q4_0")
    kept, floats = load(files, config, KEEP), load(files, config, None)
    weights = sum(weight.tensor.numel() for weight in linear_weights(floats))
    table = 4 * floats.embed_tokens.weight.numel()
    norms = floats.weight_bytes - 4 * weights - table
    assert 0 < norms < 10_000
    assert kept.weight_bytes == weights * 5 / 8 + table + norms


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_K", "Q8_0", *ROUNDED])
@torch.inference_mode()
def test_a_gpu_keeps_the_same_numbers(type_name: str, write_model: WriteModel) -> None:
    """Here by the reference of its product."""
    files, config = write_model("Qwen3ForCausalLM", type_name)
    models = []
    for keep in (True, False):
        model = build_model(config, torch.float32, "cpu", keep_quantized=keep)
        model.load_weights(iterate_weights(files, config))
        models.append(model)
    kept = models[0]
    assert kept.linear_formats == {"int4" if KEPT.get(type_name) == "q4" else "int8"}
    assert kept.weight_bytes < models[1].weight_bytes
    logits = []
    for model in models:
        rng = random.Random(0)
        harness = PagedHarness(config, torch.float32, rng, block_size=16)
        harness.add([rng.randrange(config.vocab_size) for _ in range(20)])
        logits.append(logits_of_all(model, harness, rng)[0])
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)
