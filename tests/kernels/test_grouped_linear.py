"""Products with quantised weights equal the reference on the weight's exact numbers."""

import dataclasses

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pagelet.kernels.gpu import invariance
from pagelet.kernels.gpu.architectures import ARCHITECTURES, Architecture
from pagelet.kernels.linear import grouped_linear, linear
from pagelet.kernels.linear import triton as linear_triton
from pagelet.kernels.linear.grouped import GroupedWeight, Kind
from support.quantized_weights import random_weight
from support.tolerance import TOLERANCE

KINDS: list[Kind] = ["int4", "int8", "fp8"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@given(
    num_tokens=st.sampled_from([0, 1, 3, 17, 70]),
    out_size=st.integers(1, 70),
    in_size=st.integers(1, 7).map(lambda n: 32 * n) | st.integers(1, 200),
    group=st.sampled_from([16, 32, 64, 128, None]),
    bias=st.booleans(),
    ordered=st.booleans(),
    minima=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12)
def test_triton_equals_the_reference(
    kind: str,
    dtype: torch.dtype,
    num_tokens: int,
    out_size: int,
    in_size: int,
    group: int | None,
    bias: bool,
    ordered: bool,
    minima: bool,
    seed: int,
) -> None:
    assume(group != 16 or kind == "int8")
    weight = random_weight(kind, out_size, in_size, group, seed, minima=minima)
    random = torch.Generator().manual_seed(seed)
    if ordered:
        order = torch.randperm(in_size, generator=random)
        weight = dataclasses.replace(weight, order=order)
    # Between the columns of something wider, all else of which is poisoned.
    wide = torch.full((num_tokens, in_size + 3), torch.nan, dtype=dtype)
    x = wide[:, :in_size].copy_(torch.randn(num_tokens, in_size, generator=random))
    of_outputs = torch.randn(out_size, generator=random).to(dtype) if bias else None
    expected = grouped_linear.implementations["reference"](x, weight, of_outputs)
    actual = grouped_linear.implementations["triton"](x, weight, of_outputs)
    # Sums of some hundred products round by their size, not by that of the result.
    scale = in_size**0.5 * 4
    torch.testing.assert_close(actual / scale, expected / scale, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", [32, 128, None])
@pytest.mark.parametrize("kind", KINDS)
@given(
    num_tokens=st.sampled_from([1, 16, 31]),
    out_size=st.integers(1, 70),
    in_size=st.integers(1000, 1700),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=3)
def test_inputs_that_are_split_among_programs(
    kind: str,
    group: int | None,
    dtype: torch.dtype,
    num_tokens: int,
    out_size: int,
    in_size: int,
    bias: bool,
    seed: int,
) -> None:
    weight = random_weight(kind, out_size, in_size, group, seed, minima=True)
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, in_size, generator=random).to(dtype)
    of_outputs = torch.randn(out_size, generator=random).to(dtype) if bias else None
    kernels = []
    launch = linear_triton.launch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            linear_triton,
            "launch",
            lambda kernel, *a, **k: (kernels.append(kernel), launch(kernel, *a, **k)),
        )
        actual = linear_triton.grouped_linear(x, weight, of_outputs)
    assert kernels == [linear_triton.grouped_linear_kernel, linear_triton.sum_splits_kernel]
    expected = grouped_linear.implementations["reference"](x, weight, of_outputs)
    scale = in_size**0.5 * 4
    torch.testing.assert_close(actual / scale, expected / scale, **TOLERANCE[dtype])


@pytest.mark.parametrize("target", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_a_decode_fills_the_gpu_and_a_prompt_is_not_split(
    target: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def programs(kind: Kind, out_size: int, in_size: int, rows: int) -> tuple[int, int]:
        """Of one product, and the splits among them."""
        nothing = torch.empty(out_size, 0)
        weight = GroupedWeight(kind, nothing, nothing, None, 128, in_size)
        tile = linear_triton.choose_tile(target, rows, weight, 2)
        split = linear_triton.choose_split(target, rows, weight, tile)
        assert split == in_size or split % tile.inner == 0
        splits = -(-in_size // split)
        assert splits == 1 or split >= tile.stages * tile.inner
        return -(-out_size // tile.columns) * -(-rows // tile.rows) * splits, splits

    for kind in KINDS:
        for out_size, in_size in ((4096, 14336), (6144, 4096), (28672, 4096), (2048, 8192)):
            decodes = {programs(kind, out_size, in_size, rows) for rows in range(1, 17)}
            assert len(decodes) == 1, "would compile a kernel for a number of rows"
            assert decodes.pop()[0] >= min(target.processors, 256)
            assert programs(kind, out_size, in_size, 4096)[1] == 1
    monkeypatch.setattr(invariance, "BATCH_INVARIANT", True)
    for rows in (1, 40, 4096):
        assert programs("int4", 2048, 8192, rows)[1] == 1


@pytest.mark.parametrize("group", [32, None])
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_the_linear_layer_on_the_floats(kind: str, group: int | None) -> None:
    weight = random_weight(kind, 9, 100, group, 3)
    x = torch.randn(4, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    floats = weight.dequantize(torch.float64)
    assert floats.shape == weight.shape
    expected = linear(x, floats, torch.ones(9, dtype=torch.float64))
    actual = grouped_linear(x, weight, torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_one_form_join_and_others_do_not(kind: str) -> None:
    first, second = random_weight(kind, 5, 96, 32, 0), random_weight(kind, 7, 96, 32, 1)
    joined = first.join(second)
    assert joined is not None
    expected = torch.cat([weight.dequantize(torch.float32) for weight in (first, second)])
    assert torch.equal(joined.dequantize(torch.float32), expected)
    assert joined.nbytes == first.nbytes + second.nbytes
    assert first.join(random_weight(kind, 7, 96, 64, 1)) is None
    orders = [torch.arange(96).flip(0), torch.arange(96).roll(1)]
    in_order = [dataclasses.replace(first, order=order) for order in orders]
    assert in_order[0].join(first) is None
    assert in_order[0].join(in_order[1]) is None
    same = in_order[0].join(dataclasses.replace(second, order=orders[0]))
    assert same is not None
    assert torch.equal(same.dequantize(torch.float32), expected.flip(1))
    other = KINDS[(KINDS.index(kind) + 1) % 3]
    assert first.join(random_weight(other, 7, 96, 32, 1)) is None
