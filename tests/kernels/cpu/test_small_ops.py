"""The operations between linear layers equal their references, and treat each row alone."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.kernels.cpu.library import library
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.embedding import cpu as embedding_cpu
from pagelet.kernels.embedding import reference as embedding_reference
from pagelet.kernels.gated_activation import cpu as gated_activation_cpu
from pagelet.kernels.gated_activation import reference as gated_activation_reference
from pagelet.kernels.kv_write.cpu import kv_write
from pagelet.kernels.paged_attention.pages import token_size
from pagelet.kernels.rms_norm import cpu as rms_norm_cpu
from pagelet.kernels.rms_norm import reference as rms_norm_reference
from pagelet.kernels.rotary import reference as rotary_reference
from pagelet.kernels.rotary.cpu import record_rotary_kv_write

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(shape, generator=generator)).to(dtype)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Within a few roundings of float32, or one of bfloat16."""
    rtol = 2**-7 if got.dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(got, expected, rtol=rtol, atol=1e-6)


@given(st.integers(0, 9), st.integers(1, 4), st.integers(1, 90), DTYPES, st.booleans(), SEEDS)
@MANY
def test_rms_norm(
    tier: str, rows: int, groups: int, size: int, dtype: torch.dtype, plus_one: bool, seed: int
) -> None:
    x = random(rows, groups, size, dtype=dtype, seed=seed)
    weight = random(size, dtype=dtype, seed=seed + 1)
    got = rms_norm_cpu.rms_norm(x, weight, 1e-5, plus_one)
    assert_close(got, rms_norm_reference.rms_norm(x, weight, 1e-5, plus_one))


@given(st.integers(0, 9), st.integers(1, 90), DTYPES, st.booleans(), SEEDS)
@MANY
def test_add_rms_norm(
    tier: str, rows: int, size: int, dtype: torch.dtype, plus_one: bool, seed: int
) -> None:
    x, residual = random(2, rows, size, dtype=dtype, seed=seed)
    weight = random(size, dtype=dtype, seed=seed + 1)
    got, total = rms_norm_cpu.add_rms_norm(x, residual, weight, 1e-5, plus_one)
    expected, expected_total = rms_norm_reference.add_rms_norm(x, residual, weight, 1e-5, plus_one)
    assert torch.equal(total, expected_total)
    assert_close(got, expected)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul"])
@given(st.integers(0, 9), st.integers(1, 90), DTYPES, st.floats(0.1, 40), SEEDS)
@MANY
def test_gated_activations(
    tier: str, name: str, rows: int, size: int, dtype: torch.dtype, spread: float, seed: int
) -> None:
    gate_up = random(rows, 2 * size, dtype=dtype, seed=seed) * spread
    got = getattr(gated_activation_cpu, name)(gate_up)
    expected = getattr(gated_activation_reference, name)(gate_up.double()).to(dtype)
    rtol = 2**-7 if dtype == torch.bfloat16 else 2e-6
    # In the tail of GELU, (1 + tanh) / 2 is small and its argument large.
    torch.testing.assert_close(got, expected, rtol=rtol * 4, atol=1e-5)


def test_gated_activations_at_the_ends(tier: str) -> None:
    gate = torch.tensor([[-math.inf, -1e4, -88.0, 0.0, 88.0, 1e4, math.inf, math.nan]])
    got = gated_activation_cpu.silu_and_mul(torch.cat([gate, torch.ones_like(gate)], dim=1))[0]
    assert torch.equal(got[[1, 3, 4, 5, 6]], torch.tensor([-0.0, 0.0, 88.0, 1e4, math.inf]))
    assert got[[0, 7]].isnan().all()  # -inf * 0, as by the definition
    torch.testing.assert_close(got[2], torch.nn.functional.silu(gate[0, 2]), rtol=1e-5, atol=0)


@given(st.lists(st.integers(-3, 25), max_size=9), st.integers(1, 40), DTYPES, SEEDS)
@MANY
def test_embedding(tier: str, ids: list[int], size: int, dtype: torch.dtype, seed: int) -> None:
    table = random(20, size, dtype=dtype, seed=seed)
    token_ids = torch.tensor(ids, dtype=torch.int64)
    got = embedding_cpu.embedding(token_ids, table, first_id=2)
    assert torch.equal(got, embedding_reference.embedding(token_ids, table, first_id=2))


def test_scaled_embedding_is_rounded_once(tier: str) -> None:
    table = random(20, 33, dtype=torch.bfloat16, seed=0)
    token_ids, out = torch.tensor([3, 19]), torch.zeros(2, 33, dtype=torch.bfloat16)
    program = Program()
    embedding_cpu.record_embedding(program, token_ids, table, out, scale=25.25)
    program.run(2)
    assert torch.equal(out, (table[token_ids].float() * 25.25).bfloat16())


CACHE_DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int8])


@given(
    *(st.integers(0, 9), st.integers(1, 3), st.integers(1, 2), st.integers(1, 6)),
    *(DTYPES, CACHE_DTYPES, SEEDS),
)
@MANY
def test_rotary_and_kv_write(
    tier: str,
    rows: int,
    group: int,
    num_kv_heads: int,
    eighths: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    seed: int,
) -> None:
    half, block_size, num_heads = 4 * eighths, 32, group * num_kv_heads
    head_dim = 2 * half
    heads = random(rows, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, 50, (rows,), generator=generator)
    slots = torch.randperm(4 * block_size, generator=generator)[:rows]
    angles = torch.rand(50, half, generator=generator) * 6
    cos_sin = torch.stack([angles.cos(), angles.sin()], dim=1)
    token = token_size(head_dim, cache_dtype)
    poison = 99 if cache_dtype == torch.int8 else math.nan
    cache = torch.full((2, 4, num_kv_heads, block_size, token), poison, dtype=cache_dtype)
    written = cache.clone()
    got = heads.clone()
    program = Program()
    record_rotary_kv_write(program, got, positions, cos_sin, cache, slots, num_heads=num_heads)
    program.run(rows)

    turned = heads[:, : num_heads + num_kv_heads]
    cos, sin = cos_sin[positions].unbind(1)
    expected = rotary_reference.rotary(turned, cos, sin)
    assert torch.equal(got[:, : num_heads + num_kv_heads], expected)
    assert torch.equal(got[:, num_heads + num_kv_heads :], heads[:, num_heads + num_kv_heads :])
    keys, values = expected[:, num_heads:], heads[:, num_heads + num_kv_heads :]
    kv_write(keys, values, written, slots)
    assert torch.equal(cache.view(torch.uint8), written.view(torch.uint8))


def test_rows_are_bit_equal_in_every_batch(tier: str) -> None:
    x = random(40, 1200, dtype=torch.bfloat16, seed=9)
    weight = torch.ones(1200)
    operations: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda rows: rms_norm_cpu.rms_norm(rows, weight, 1e-6),
        gated_activation_cpu.silu_and_mul,
        gated_activation_cpu.gelu_and_mul,
    ]
    before = library().threads
    library().set_threads(3)
    for operation in operations:
        together = operation(x)
        for row in range(40):
            assert torch.equal(operation(x[row : row + 1])[0], together[row])
    library().set_threads(before)
