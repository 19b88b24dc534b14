"""The linear layer on packed weights: every format and instruction set equals the definition, and
a row's result depends on nothing but the row."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.kernels.cpu.library import library
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.linear import packed_reference
from pagelet.kernels.linear.cpu import linear, record_linear
from pagelet.kernels.linear.packed import (
    LinearFormat,
    PackedLinear,
    pack_linear,
    quantise_q4,
    quantise_q8,
)

FORMATS: list[LinearFormat] = ["f32", "bf16", "q8", "q4"]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=FORMATS)
def format_(request: pytest.FixtureRequest) -> LinearFormat:
    chosen: LinearFormat = request.param
    return chosen


def poisoned(
    rows: int, columns: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random rows inside a larger tensor of NaN."""
    whole = torch.full((rows + 2, columns + 7), math.nan, dtype=dtype)
    part = whole[1 : rows + 1, 3 : columns + 3]
    part.copy_(torch.randn(rows, columns, generator=generator))
    return whole, part


def guard_is_intact(whole: torch.Tensor, part: torch.Tensor) -> bool:
    return int(whole.isnan().sum()) == whole.numel() - part.numel()


@given(
    rows=st.integers(1, 30),
    out_size=st.integers(1, 150),
    in_size=st.integers(1, 300),
    x_dtype=st.sampled_from(DTYPES),
    y_dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
    accumulate=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_equals_the_definition(
    tier: str,
    format_: LinearFormat,
    rows: int,
    out_size: int,
    in_size: int,
    x_dtype: torch.dtype,
    y_dtype: torch.dtype,
    has_bias: bool,
    accumulate: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    packed = pack_linear(torch.randn(out_size, in_size, generator=generator), format_)
    bias = torch.randn(out_size, generator=generator) if has_bias else None
    _, x = poisoned(rows, in_size, x_dtype, generator)
    whole, y = poisoned(rows, out_size, y_dtype, generator)
    before = y.double()
    linear(x, packed, bias, y, accumulate=accumulate)

    expected = packed_reference.linear(x, packed, bias)
    if accumulate:
        expected = expected + before
    magnitude = packed_reference.prepare(x, packed).abs() @ packed_reference.unpack(packed).abs().T
    tolerance = 4e-7 * math.sqrt(in_size) * magnitude + 1e-6 * expected.abs() + 1e-6
    if y_dtype == torch.bfloat16:
        tolerance += 2**-8 * expected.abs()
    assert ((y.double() - expected).abs() <= tolerance).all()
    assert guard_is_intact(whole, y)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_bit_equal_in_every_batch(tier: str, format_: LinearFormat, threads: int) -> None:
    generator = torch.Generator().manual_seed(threads)
    packed = pack_linear(torch.randn(211, 200, generator=generator), format_)
    x = torch.randn(70, 200, generator=generator)
    before = library().threads
    library().set_threads(1)
    alone = torch.cat([linear(row.unsqueeze(0), packed) for row in x])
    library().set_threads(threads)
    try:
        for rows in range(1, 71):
            first = (70 - rows) // 2
            got = linear(x[first : first + rows], packed)
            assert torch.equal(got, alone[first : first + rows]), rows
    finally:
        library().set_threads(before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_number_spoils_its_output_and_no_other(
    tier: str, format_: LinearFormat, value: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 100, generator=generator)
    weight[3, 70] = value
    y = linear(torch.rand(2, 100, generator=generator) + 1, pack_linear(weight, format_))
    assert not y[:, 3].isfinite().any()
    y[:, 3] = 0
    assert y.isfinite().all()


def test_rows_too_many_for_one_cache_block_are_bit_equal(tier: str, format_: LinearFormat) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = pack_linear(torch.randn(40, 3000, generator=generator), format_)
    x = torch.randn(300, 3000, generator=generator)
    together = linear(x, packed)
    for row in (0, 1, 21, 150, 298, 299):
        assert torch.equal(linear(x[row : row + 1], packed)[0], together[row])


@pytest.mark.parametrize("format_", ["f32", "q8", "q4"])
def test_all_instruction_sets_give_the_same_bits(format_: LinearFormat) -> None:
    generator = torch.Generator().manual_seed(5)
    packed = pack_linear(torch.randn(50, 333, generator=generator), format_)
    x = torch.randn(9, 333, generator=generator)
    results = []
    before = library().tier
    for name in library().tiers:
        library().use_tier(name)
        results.append(linear(x, packed))
    library().use_tier(before)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("wide", [False, True])
def test_blocks_of_8_bits_are_kept_exactly(tier: str, wide: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(-128, 128, (37, 96), generator=generator, dtype=torch.int8)
    scales = torch.rand(37, 3, generator=generator)
    scales = scales if wide else scales.half()
    packed = PackedLinear.from_q8_blocks(scales, values)
    assert packed.wide_scales == wide
    weight = values.double() * scales.double().repeat_interleave(32, dim=1)
    assert torch.equal(packed_reference.unpack(packed), weight)
    x = torch.randn(5, 96, generator=generator)
    expected = packed_reference.linear(x, packed)
    torch.testing.assert_close(linear(x, packed).double(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("wide", [False, True])
def test_blocks_of_4_bits_are_kept_exactly(tier: str, wide: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(0, 16, (37, 96), generator=generator, dtype=torch.uint8)
    scales, minima = torch.rand(37, 3, generator=generator), torch.randn(37, 3, generator=generator)
    if not wide:
        scales, minima = scales.half(), minima.half()
    packed = PackedLinear.from_q4_blocks(scales, minima, values)
    assert packed.wide_scales == wide
    weight = values.double() * scales.double().repeat_interleave(32, dim=1)
    weight += minima.double().repeat_interleave(32, dim=1)
    assert torch.equal(packed_reference.unpack(packed), weight)
    x = torch.randn(5, 96, generator=generator)
    expected = packed_reference.linear(x, packed)
    torch.testing.assert_close(linear(x, packed).double(), expected, rtol=1e-5, atol=1e-4)


@given(st.integers(1, 20), st.integers(1, 100), st.floats(-30, 30), st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_quantising_errs_by_half_a_step(rows: int, columns: int, offset: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) + offset
    scales, values = quantise_q8(weight)
    by_column = scales.repeat_interleave(32, dim=1)[:, :columns]
    # A scale is rounded to 11 bits, of up to 127 steps.
    assert ((values * by_column - weight).abs() <= by_column * (0.5 + 127 * 2**-11)).all()
    error_8 = (values * by_column - weight).norm()

    scales, minima, values = quantise_q4(weight)
    assert values.max() <= 15
    expanded = [t.repeat_interleave(32, dim=1)[:, :columns] for t in (scales, minima)]
    error_4 = (values * expanded[0] + expanded[1] - weight).norm()
    low, high = weight.amin(), weight.amax()
    bound = (high - low) / 30 + 2**-11 * weight.abs().amax() * 2
    assert error_4 <= bound * math.sqrt(weight.numel()) * 1.01
    assert error_8 <= (weight.abs().amax() / 127) * math.sqrt(weight.numel())


@pytest.mark.parametrize("format_", ["q8", "q4"])
def test_constant_zero_and_huge_groups(tier: str, format_: LinearFormat) -> None:
    weight = torch.zeros(16, 128)
    weight[:, 32:64], weight[:, 64:96] = 3.0, 1e-6
    weight[::2, 96:] = 1e4
    packed = pack_linear(weight, format_)
    x = torch.zeros(3, 128)
    x[1], x[2] = 1e30, torch.arange(128)
    got, expected = linear(x, packed), packed_reference.linear(x, packed)
    assert (got[0] == 0).all()
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)


def test_nan_activations_are_not_hidden(tier: str, format_: LinearFormat) -> None:
    packed = pack_linear(torch.randn(20, 64), format_)
    x = torch.randn(4, 64)
    x[2, 40] = math.nan
    y = linear(x, packed)
    assert y[2].isnan().all()
    assert not y[[0, 1, 3]].isnan().any()


def test_no_rows_and_wrong_dtypes(tier: str) -> None:
    packed = pack_linear(torch.randn(20, 64), "f32")
    assert linear(torch.empty(0, 64), packed).shape == (0, 20)
    with pytest.raises(TypeError, match="float64"):
        linear(torch.zeros(1, 64, dtype=torch.float64), packed)
    with pytest.raises(ValueError, match="at most 4 sizes"):
        Program().run(1, 2, 3, 4, 5)


def test_each_operation_takes_its_own_number_of_rows(tier: str) -> None:
    packed = pack_linear(torch.randn(20, 64), "f32")
    x, y, z = torch.randn(6, 64), torch.zeros(6, 20), torch.zeros(6, 20)
    program = Program()
    record_linear(program, x, packed, y, rows=0)
    record_linear(program, x, packed, z, rows=1)
    for sizes in ((5, 2), (1, 6), (0, 3)):
        y.zero_()
        z.zero_()
        program.run(*sizes)
        for out, rows in ((y, sizes[0]), (z, sizes[1])):
            assert torch.equal(out[:rows], linear(x[:rows], packed))
            assert (out[rows:] == 0).all()


@given(st.integers(1, 40), st.integers(1, 140), st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_floats_are_packed_as_they_are(out_size: int, in_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out_size, in_size, generator=generator).bfloat16()
    formats: list[LinearFormat] = ["f32", "bf16"]
    for format in formats:
        unpacked = packed_reference.unpack(pack_linear(weight, format))
        assert torch.equal(unpacked, weight.double())


def test_a_narrower_range_is_chosen_where_it_errs_less() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(200, 32, generator=generator)
    scales, minima, values = quantise_q4(weight)
    low, high = weight.aminmax(dim=1, keepdim=True)
    step = (high - low) / 15
    plain = ((weight - low) / step).round() * step + low
    assert (values * scales + minima - weight).norm() < 0.97 * (plain - weight).norm()
