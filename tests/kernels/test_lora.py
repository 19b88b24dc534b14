"""Adapters in Triton equal the definition, whatever the ranks, the blocks and what lies between."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.kernels.lora import AdapterRows, AdapterTable, LowRank, adapters, add_adapters
from support.adapted_layers import layers, make_adapters
from support.tolerance import TOLERANCE

CPU = torch.device("cpu")
MOST = 40
"""The largest rank of `layers()`."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_wide", [False, True])
@given(layer=layers(), max_rank=st.sampled_from([MOST, 100]), seed=st.integers(0, 1000))
@settings(max_examples=8)
def test_triton_equals_the_reference(
    dtype: torch.dtype, is_wide: bool, layer: tuple, max_rank: int, seed: int
) -> None:
    in_size, parts, num_rows, ranks, of_rows = layer
    generator, groups = make_adapters(in_size, parts, ranks, of_rows, seed)
    table = AdapterTable(len(groups) + 2, parts, max_rank, CPU)
    rows = AdapterRows(num_rows, CPU)
    # In other slots than their order has; one more was there once.
    slots = [len(groups) - index for index in range(len(groups))]
    for slot, (_, pairs) in zip(slots, groups, strict=True):
        table.put(
            slot,
            [p and LowRank(p.a.to(dtype) * in_size**-0.5, p.b.to(dtype)) for p in pairs],
        )
    table.put(0, [LowRank(torch.full((3, in_size), math.nan), torch.ones(n, 3)) for n in parts])
    table.drop(0)
    rows.set([(0, torch.arange(num_rows))])  # of a step before
    with pytest.MonkeyPatch.context() as patch:
        if is_wide:
            patch.setattr(adapters, "BLOCK_ROWS", adapters.WIDE_ROWS)
        rows.set([(slot, index) for slot, (index, _) in zip(slots, groups, strict=True)])
    rows.launched_blocks += 2  # a graph's bound
    wide = torch.full((num_rows, in_size + 3), math.nan, dtype=dtype)
    x = wide[:, :in_size].copy_(torch.randn(num_rows, in_size, generator=generator))
    x[[row for row, of_row in enumerate(of_rows) if of_row < 0]] = math.nan
    whole = torch.full((num_rows, sum(parts) + 5), math.nan, dtype=dtype)
    out = whole[:, 2 : 2 + sum(parts)].copy_(torch.randn(num_rows, sum(parts), generator=generator))
    expected = out.clone()
    add_adapters.implementations["reference"](expected, x, table, rows)
    before = out.clone()
    add_adapters.implementations["triton"](out, x, table, rows)
    assert int(whole.isnan().sum()) == 5 * num_rows, "wrote beside its outputs"
    scale = MOST**0.5 * 4
    torch.testing.assert_close(out / scale, expected / scale, **TOLERANCE[dtype])
    without = [row for row, of_row in enumerate(of_rows) if of_row < 0]
    assert torch.equal(out[without], before[without])


@given(layer=layers(), seed=st.integers(0, 1000))
@settings(max_examples=5)
def test_a_row_has_the_same_bits_alone(layer: tuple, seed: int) -> None:
    in_size, parts, num_rows, ranks, of_rows = layer
    generator, groups = make_adapters(in_size, parts, ranks, of_rows, seed)
    table = AdapterTable(max(1, len(groups)), parts, MOST, CPU)
    for slot, (_, pairs) in enumerate(groups):
        table.put(slot, pairs)
    rows = AdapterRows(num_rows, CPU)
    rows.set([(slot, index) for slot, (index, _) in enumerate(groups)])
    x = torch.randn(num_rows, in_size, generator=generator)
    out = torch.randn(num_rows, sum(parts), generator=generator)
    together = out.clone()
    add_adapters.implementations["triton"](together, x, table, rows)
    for row, slot in enumerate(of_rows[:4]):
        if slot >= 0:
            alone = out[row : row + 1].clone()
            rows.set([(slot, torch.tensor([0]))])
            add_adapters.implementations["triton"](alone, x[row : row + 1], table, rows)
            assert torch.equal(alone[0], together[row])


def test_two_launches_whatever_the_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    from pagelet.kernels.lora import triton

    kernels = []
    monkeypatch.setattr(triton, "launch", lambda kernel, *a, **k: kernels.append(kernel))
    table, rows = AdapterTable(9, [8, 4], 16, CPU), AdapterRows(40, CPU)
    rows.set([(slot, torch.arange(4 * slot, 4 * slot + 4)) for slot in range(9)])
    triton.add_adapters(torch.zeros(40, 12), torch.zeros(40, 32), table, rows)
    assert kernels == [triton.shrink_kernel, triton.expand_kernel]


def test_a_rank_beyond_the_bound_is_not_taken() -> None:
    table = AdapterTable(1, [4], 8, CPU)
    with pytest.raises(AssertionError):
        table.put(0, [LowRank(torch.zeros(9, 5), torch.zeros(4, 9))])
