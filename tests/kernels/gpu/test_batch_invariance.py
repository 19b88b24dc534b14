"""With PAGELET_BATCH_INVARIANT a row's bits are the same alone and among others."""

import dataclasses
import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from pagelet.engine.layers.context import ALONE
from pagelet.engine.models.registry import build_model
from pagelet.kernels.dispatch import Op
from pagelet.kernels.gated_activation import silu_and_mul
from pagelet.kernels.gpu import invariance
from pagelet.kernels.gpu.architectures import ARCHITECTURES
from pagelet.kernels.linear import grouped_linear, linear
from pagelet.kernels.linear import triton as linear_triton
from pagelet.kernels.moe import moe
from pagelet.kernels.moe import triton as moe_triton
from pagelet.kernels.paged_attention import paged_attention
from pagelet.kernels.rms_norm import add_rms_norm, rms_norm
from pagelet.kernels.rotary import rotary_kv_write
from pagelet.kernels.sample import sample
from support.models import CONFIGS, randomize
from support.paged import PagedHarness
from support.quantized_weights import random_weight

IN, OUT = 96, 40
ROW_BY_ROW = {"norm", "norm of a sum", "activation", "sampling"}
"""Their programs have one row each."""


@pytest.fixture(autouse=True)
def invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariance, "BATCH_INVARIANT", True)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows_of(op: Op, *more: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: op.implementations["triton"](x, *more)


def mixture(x: torch.Tensor) -> torch.Tensor:
    router = linear.implementations["triton"](x, normal(3, IN))
    gate_up, down = normal(3, 2 * 24, IN, seed=1), normal(3, IN, 24, seed=2)
    return moe.implementations["triton"](x, router, gate_up, down, 2, True)


def drawn(x: torch.Tensor) -> torch.Tensor:
    columns = torch.full((len(x),), 0.8, dtype=torch.float64)
    uniforms = (x[:, 0].double().abs() * 1e4) % 1  # a row's own
    filters = {"min_p": columns / 9, "top_p": columns, "top_k": torch.full((len(x),), 50)}
    return sample.implementations["triton"](x, columns, uniforms, **filters, max_top_k=50)[0]


add_norm = add_rms_norm.implementations["triton"]
OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": rows_of(linear, normal(OUT, IN), normal(OUT)),
    **{
        f"linear, {kind}": rows_of(grouped_linear, random_weight(kind, OUT, IN, 32, 0))  # type: ignore[arg-type]
        for kind in ("int4", "int8", "fp8")
    },
    "norm": lambda x: rms_norm.implementations["triton"](x, normal(IN), 1e-6),
    "norm of a sum": lambda x: add_norm(x, x / 3, normal(IN), 1e-6)[0],
    "activation": rows_of(silu_and_mul),
    "mixture": mixture,
    "sampling": drawn,
}


@pytest.mark.parametrize("num_rows", [3, 70])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_row_alone_and_among_others(name: str, num_rows: int) -> None:
    if name in ROW_BY_ROW:
        num_rows = min(num_rows, 4)
    x = normal(num_rows, IN, seed=num_rows)
    together = OPERATIONS[name](x)
    for row in (0, num_rows - 1):
        assert torch.equal(OPERATIONS[name](x[row : row + 1])[0], together[row])


def test_tiles_do_not_depend_on_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """And would, but for the mode."""

    weight = random_weight("int4", 8, 256, 128, 0)

    def tiles(rows: float) -> list[object]:
        return [
            chosen
            for target in ARCHITECTURES.values()
            for chosen in (
                linear_triton.choose_tile(target, rows, weight, 2),
                moe_triton.choose_tile(target, rows, 2),
            )
        ]

    assert tiles(1) == tiles(30) == tiles(5000)
    monkeypatch.setattr(invariance, "BATCH_INVARIANT", False)
    assert tiles(1) != tiles(5000)


@pytest.mark.parametrize("name", ["biases", "mixtral"])
@torch.inference_mode()
def test_a_model_on_all_of_these_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence in one chunk alone, and in others beside another sequence."""
    for op in (linear, moe, paged_attention, rms_norm, add_rms_norm, rotary_kv_write, silu_and_mul):
        monkeypatch.setitem(op._by_device, "cpu", op.implementations["triton"])
    config = dataclasses.replace(CONFIGS[name], num_layers=1)
    model = build_model(config, torch.float32, "cpu", ALONE)
    randomize(model)
    tokens = [random.Random(0).randrange(config.vocab_size) for _ in range(8)]

    def states(plans: list[list[tuple[int, int]]]) -> torch.Tensor:
        harness = PagedHarness(config, torch.float32, random.Random(1))
        harness.add(tokens)
        harness.add(tokens[::-1] * 3)
        parts = []
        for plan in plans:
            hidden = model.forward(*harness.prepare(plan))
            if plan[0][0] == 0:
                parts.append(model.compute_logits(hidden[: plan[0][1]]))
        return torch.cat(parts)

    alone = states([[(0, 8)]])
    assert torch.equal(alone, states([[(0, 5), (1, 24)], [(0, 1)], [(0, 2)]]))


def test_the_process_environment_chooses_the_products() -> None:
    code = "from pagelet.kernels.linear import linear; print(linear.chosen('cuda'))"
    for setting, chosen in (("1", "triton"), ("", "reference")):
        environment = os.environ | {"PAGELET_BATCH_INVARIANT": setting}
        command = [sys.executable, "-c", code]
        assert subprocess.check_output(command, env=environment, text=True).strip() == chosen
