"""What adapters add: every instruction set equals the definition, and a row's bits depend on
nothing but the row and its adapter."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.kernels.lora import LowRank, cpu, reference
from support.adapted_layers import layers, make_adapters

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@given(layer=layers(), seed=st.integers(0, 2**32 - 1))
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_equals_the_definition(tier: str, dtype: torch.dtype, layer: tuple, seed: int) -> None:
    in_size, parts, rows, adapters, of_rows = layer
    generator, groups = make_adapters(in_size, parts, adapters, of_rows, seed)
    x = torch.randn(rows, in_size, generator=generator).to(dtype)
    x[[row for row, of_row in enumerate(of_rows) if of_row < 0]] = math.nan
    whole = torch.full((rows, sum(parts) + 5), math.nan, dtype=dtype)
    out = whole[:, 2 : 2 + sum(parts)]
    out.copy_(torch.randn(rows, sum(parts), generator=generator))
    rounded = [
        (rows_of, [None if p is None else LowRank(p.a.to(dtype), p.b.to(dtype)) for p in pairs])
        for rows_of, pairs in groups
    ]
    expected = out.double()
    exact = [
        (rows_of, [None if p is None else LowRank(p.a.double(), p.b.double()) for p in pairs])
        for rows_of, pairs in rounded
    ]
    reference.add_low_rank(expected, x.double(), parts, exact)
    before = out.clone()
    cpu.add_low_rank(out, x, parts, rounded)
    assert int(whole.isnan().sum()) == 5 * rows, "wrote beside its outputs"
    largest = in_size**0.5 * 40**0.5
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance * largest)
    without = [row for row, of_row in enumerate(of_rows) if of_row < 0]
    assert torch.equal(out[without], before[without])


@pytest.mark.parametrize("dtype", DTYPES)
@given(layer=layers(), seed=st.integers(0, 2**32 - 1))
@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_rows_bits_are_its_own(tier: str, dtype: torch.dtype, layer: tuple, seed: int) -> None:
    in_size, parts, rows, adapters, of_rows = layer
    generator, groups = make_adapters(in_size, parts, adapters, of_rows, seed)
    x = torch.randn(rows, in_size, generator=generator).to(dtype)
    out = torch.randn(rows, sum(parts), generator=generator).to(dtype)
    together = out.clone()
    cpu.add_low_rank(together, x, parts, groups)
    for row, of_row in enumerate(of_rows[:8]):
        if of_row >= 0:
            alone = out[row : row + 1].clone()
            cpu.add_low_rank(
                alone, x[row : row + 1], parts, [(torch.tensor([0]), groups[of_row][1])]
            )
            assert torch.equal(alone[0], together[row])
