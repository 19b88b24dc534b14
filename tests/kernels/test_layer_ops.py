"""Every implementation of the small operations equals its reference, on random shapes."""

import dataclasses
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from pagelet.kernels.dispatch import Op
from pagelet.kernels.embedding import embedding
from pagelet.kernels.gated_activation import gelu_and_mul, silu_and_mul
from pagelet.kernels.linear import linear
from pagelet.kernels.moe import moe
from pagelet.kernels.moe.experts import GroupedExperts
from pagelet.kernels.rms_norm import add_rms_norm, rms_norm
from support.quantized_weights import random_weight
from support.tolerance import TOLERANCE

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SEEDS = st.integers(0, 10_000)


class Random:
    """Tensors of one element type from one seed."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def size(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)


def norm_arguments(random: Random) -> tuple[Any, ...]:
    size = random.size(1, 70)
    return random(random.size(0, 5), size), random(size), 1e-6, bool(random.size(0, 1))


def add_norm_arguments(random: Random) -> tuple[Any, ...]:
    x, weight, eps, plus_one = norm_arguments(random)
    return x, random(*x.shape), weight, eps, plus_one


def head_norm_arguments(random: Random) -> tuple[Any, ...]:
    """As norms of queries get them: a slice of heads, not contiguous."""
    heads = random(random.size(0, 5), 6, 16)
    return heads[:, 1:4], random(16), 1e-6, False


def gated_arguments(random: Random) -> tuple[Any, ...]:
    return (random(random.size(0, 5), 2 * random.size(1, 40)) * 3,)


def linear_arguments(random: Random) -> tuple[Any, ...]:
    """Of rows within something wider."""
    in_size, out_size = random.size(1, 100), random.size(1, 70)
    x = random(random.size(0, 70), in_size + 3)[:, :in_size]
    bias = random(out_size) if random.size(0, 1) else None
    return x, random(out_size, in_size) * in_size**-0.5, bias


def embedding_arguments(random: Random) -> tuple[Any, ...]:
    """A shard of the vocabulary, and ids within and around it."""
    first, rows = random.size(0, 9), random.size(1, 9)
    ids = torch.randint(0, 30, (random.size(0, 7),), generator=random.generator)
    return ids, random(rows, random.size(1, 40)), first


def router_logits(random: Random, tokens: int, experts: int) -> torch.Tensor:
    """No two of a row are equal in any type: which of such experts a token goes to is open."""
    order = torch.rand(tokens, experts, generator=random.generator).argsort(dim=1)
    return ((order - random.size(0, experts)) * 0.4375).to(random.dtype)


def moe_arguments(random: Random) -> tuple[Any, ...]:
    experts, hidden, width = random.size(1, 9), random.size(1, 20), random.size(1, 20)
    tokens = random.size(0, 12)
    return (
        random(tokens, hidden),
        router_logits(random, tokens, experts),
        random(experts, 2 * width, hidden) * hidden**-0.5,
        random(experts, hidden, width) * width**-0.5,
        random.size(1, experts),
        bool(random.size(0, 1)),
    )


def moe_rank_arguments(random: Random) -> tuple[Any, ...]:
    """Of an expert-parallel rank, which holds some of the experts."""
    x, router, gate_up, down, top_k, renormalize = moe_arguments(random)
    first = random.size(0, len(down) - 1)
    held = slice(first, random.size(first + 1, len(down)))
    return x, router, gate_up[held], down[held], top_k, renormalize, first


def quantized_moe_arguments(random: Random) -> tuple[Any, ...]:
    """Experts of 4 or 8 bits, in groups or without, on an expert-parallel rank or the only one."""
    kind = ("int4", "int8", "fp8")[random.size(0, 2)]
    experts, top_k = random.size(2, 5), random.size(1, 2)
    hidden, width = 32 * random.size(1, 3), random.size(1, 40)
    held, has_minima = random.size(1, experts), bool(random.size(0, 1))
    first = random.size(0, experts - held)

    def matrices(out_size: int, in_size: int) -> GroupedExperts:
        group = (32, 64, -(-in_size // 64) * 64)[random.size(0, 2)]
        stacked: GroupedExperts | None = None
        for expert in range(experts):
            seed = random.size(0, 10_000)
            parts = (0, out_size // 2), (out_size // 2, out_size)
            for begin, end in parts:  # as gate and up of a checkpoint come
                part = random_weight(
                    kind, end - begin, in_size, group, seed + begin, minima=has_minima
                )
                scale = 0.3 * in_size**-0.5 / part.dequantize(torch.float32).std()
                minima = None if part.minima is None else part.minima * scale
                part = dataclasses.replace(part, scales=part.scales * scale, minima=minima)
                stacked = stacked or GroupedExperts.empty(experts, out_size, part)
                assert stacked.takes(part)
                stacked.put(expert, begin, part)
        assert stacked is not None
        return stacked[first : first + held]

    tokens = random.size(0, 12)
    return (
        random(tokens, hidden),
        router_logits(random, tokens, experts),
        matrices(2 * width, hidden),
        matrices(hidden, width),
        top_k,
        bool(random.size(0, 1)),
        first,
    )


OPS: list[tuple[Op[..., Any], Callable[[Random], tuple[Any, ...]]]] = [
    (rms_norm, norm_arguments),
    (rms_norm, head_norm_arguments),
    (add_rms_norm, add_norm_arguments),
    (silu_and_mul, gated_arguments),
    (gelu_and_mul, gated_arguments),
    (embedding, embedding_arguments),
    (linear, linear_arguments),
    (moe, moe_arguments),
    (moe, moe_rank_arguments),
    (moe, quantized_moe_arguments),
]
CASES = [
    pytest.param(op, name, arguments, id=f"{arguments.__name__}-{op.name}-{name}")
    for op, arguments in OPS
    for name in op.implementations
    if name != "reference"
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "name", "arguments"), CASES)
@given(seed=SEEDS)
@settings(max_examples=25)
def test_equals_reference(
    op: Op[..., Any],
    name: str,
    arguments: Callable[[Random], tuple[Any, ...]],
    dtype: torch.dtype,
    seed: int,
) -> None:
    given_arguments = arguments(Random(seed, dtype))
    expected = op.implementations["reference"](*given_arguments)
    actual = op.implementations[name](*given_arguments)
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])


def test_references_equal_torch() -> None:
    """The references themselves, against torch's own functions."""
    random = Random(0, torch.float64)
    x, weight = random(7, 30), random(30)
    expected = torch.nn.functional.rms_norm(x, (30,), weight, 1e-6)
    torch.testing.assert_close(rms_norm.implementations["reference"](x, weight, 1e-6), expected)
    torch.testing.assert_close(
        rms_norm.implementations["reference"](x, weight - 1, 1e-6, plus_one=True), expected
    )
    gate, up = x.chunk(2, dim=-1)
    for op, act in (
        (silu_and_mul, torch.nn.functional.silu(gate)),
        (gelu_and_mul, torch.nn.functional.gelu(gate, approximate="tanh")),
    ):
        torch.testing.assert_close(op.implementations["reference"](x), act * up)
    table, bias = random(5, 30), random(5)
    torch.testing.assert_close(linear(x, table, bias), x @ table.T + bias)


def test_embedding_is_zero_outside_its_shard() -> None:
    weight = Random(2, torch.float32)(4, 3)
    out = embedding(torch.tensor([0, 10, 13, 14, 9]), weight, 10)
    expected = torch.zeros(5, 3)
    expected[1], expected[2] = weight[0], weight[3]
    assert torch.equal(out, expected)
