"""Models whose weights are rounded as they are loaded, as on a GPU; here by the references."""

import random
from typing import Any, Literal

import pytest
import torch

from pagelet.engine.layers.expert_weights import ExpertWeights
from pagelet.engine.layers.placement import Placement
from pagelet.engine.models.causal_lm import CausalLM
from pagelet.engine.models.registry import build_model
from pagelet.engine.weights.quantized_tensor import StoredTensor
from pagelet.engine.weights.scaled_tensor import ScaledTensor
from pagelet.kernels.linear.grouped import GroupedWeight
from support.models import CONFIGS
from support.paged import PagedHarness, logits_of_all

Kind = Literal["int8", "fp8"]


def logits(model: CausalLM) -> torch.Tensor:
    rng = random.Random(0)
    harness = PagedHarness(model.config, torch.float32, rng)
    harness.add([rng.randrange(model.config.vocab_size) for _ in range(20)])
    return logits_of_all(model, harness, rng)[0]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("name", ["biases", "tied", "mixtral"])
@torch.inference_mode()
def test_linear_layers_and_experts_are_rounded_and_the_head_is_not(name: str, kind: Kind) -> None:
    config = CONFIGS[name]
    models: list[Any] = [
        build_model(config, torch.float32, "cpu", rounding=rounding) for rounding in (kind, None)
    ]
    for model in models:
        model.init_dummy()
    rounded, floats = models
    assert rounded.linear_formats == {kind}
    assert rounded.weight_bytes < floats.weight_bytes
    assert torch.equal(rounded.lm_head.weight.tensor, floats.lm_head.weight.tensor)
    found, expected = logits(rounded), logits(floats)
    assert not torch.equal(found, expected)
    assert torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1] > 0.998


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (16, 96), (5, 64)])
def test_rounding_errs_by_half_a_step(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight[0, : shape[1] // 2] = 0
    for kind in ("int8", "fp8"):
        rounded = GroupedWeight.from_floats(weight, kind)
        assert rounded.shape == shape
        error = (rounded.dequantize(torch.float64) - weight.double()).abs()
        size = min(rounded.group_size, shape[1])
        for start in range(0, shape[1], size):
            part, of_part = weight[:, start : start + size].abs(), error[:, start : start + size]
            step = part.amax(dim=1, keepdim=True) / (127 if kind == "int8" else 448)
            # e4m3 has three bits after the first: half a step is 1/16 of the number, or less.
            bound = step / 2 if kind == "int8" else torch.maximum(part / 16, step * 2**-10)
            assert (of_part <= bound * (1 + 1e-5)).all()
    zeros = GroupedWeight.from_floats(torch.zeros(3, 40), "fp8")
    assert torch.equal(zeros.dequantize(torch.float32), torch.zeros(3, 40))


@pytest.mark.parametrize("quantized", [0, 1, 2])
def test_experts_of_several_forms_are_floats(quantized: int) -> None:
    """In whatever order they come: each takes the place that it was loaded to."""
    placement = Placement(torch.float32, torch.device("cpu"), keep_quantized=True)
    weights = ExpertWeights(3, [2, 2], 64, placement)
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(3, 4, 64, generator=generator)
    for expert in range(3):
        for part in range(2):
            matrix = expected[expert, 2 * part : 2 * part + 2]
            stored: StoredTensor = matrix
            if expert == quantized:
                scales = matrix.abs().amax(1, keepdim=True) / 100
                values = (matrix / scales).round().to(torch.int8)
                matrix.copy_(values * scales)
                groups = torch.arange(2), torch.zeros(64, dtype=torch.int64)
                stored = ScaledTensor(values, scales, None, *groups)
            weights.loader(expert, part, 0, 0)(stored)
    assert weights.formats == set()
    assert isinstance(weights.experts, torch.Tensor)
    torch.testing.assert_close(weights.experts, expected)
