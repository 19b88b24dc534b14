"""The mixture of experts on packed weights: every format and instruction set equals the
definition, and a row's bits depend on nothing but the row."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.kernels.cpu.library import library
from pagelet.kernels.linear.packed import LinearFormat
from pagelet.kernels.linear.packed_reference import unpack
from pagelet.kernels.moe import reference
from pagelet.kernels.moe.cpu import PackedExpert, moe, pack_experts

DTYPES = [torch.float32, torch.bfloat16]
FORMATS: list[list[LinearFormat]] = [["f32"], ["bf16"], ["q8"], ["q4"], ["q8", "bf16", "q4"]]
QUANTIZED_ERROR = 0.03
"""Of activations that are rounded to 8 bits twice, of the largest result."""


def make(
    tokens: int, experts: int, hidden: int, width: int, formats: list[LinearFormat], seed: int
) -> tuple[torch.Tensor, torch.Tensor, list[PackedExpert]]:
    """Inputs, the router's logits and experts; rows of several lie in wider tensors of NaN."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((tokens, hidden + 3), math.nan)[:, :hidden]
    logits = torch.full((tokens, experts + 2), math.nan)[:, :experts]
    x.copy_(torch.randn(tokens, hidden, generator=generator))
    logits.copy_(torch.randn(tokens, experts, generator=generator))
    gate_up = torch.randn(experts, 2 * width, hidden, generator=generator) * hidden**-0.5
    down = torch.randn(experts, hidden, width, generator=generator) * width**-0.5
    return x, logits, pack_experts(gate_up, down, formats)


def expected_of(
    x: torch.Tensor, logits: torch.Tensor, experts: list[PackedExpert], *rest: int
) -> torch.Tensor:
    """The definition in float64, on the numbers that the packed weights stand for."""
    gate_up = torch.stack([torch.cat([unpack(each.gate), unpack(each.up)]) for each in experts])
    down = torch.stack([unpack(each.down) for each in experts])
    return reference.moe(x.double(), logits.double(), gate_up, down, *rest)


@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    *(st.integers(0, 40), st.integers(1, 9), st.integers(1, 140), st.integers(1, 70)),
    *(st.booleans(), st.data(), st.integers(0, 2**32 - 1)),
)
@settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_equals_the_definition(
    tier: str,
    dtype: torch.dtype,
    formats: list[LinearFormat],
    tokens: int,
    num_experts: int,
    hidden: int,
    width: int,
    renormalize: bool,
    data: st.DataObject,
    seed: int,
) -> None:
    x, logits, experts = make(tokens, num_experts, hidden, width, formats, seed)
    x, logits = x.to(dtype), logits.to(dtype)
    top_k = data.draw(st.integers(1, num_experts))
    first = data.draw(st.integers(0, num_experts - 1))
    held = experts[first : data.draw(st.integers(first + 1, num_experts))]
    got = moe(x, logits, held, top_k, renormalize, first)
    assert got.dtype == dtype
    # Of equal logits, as bfloat16 has them, the definition may choose another expert.
    clear = [row for row, of_row in enumerate(logits.tolist()) if len(set(of_row)) == num_experts]
    expected = expected_of(x, logits, held, top_k, renormalize, first)
    error, largest = (got.double() - expected).abs()[clear], expected.abs().amax(dim=1)[clear]
    exact = formats == ["f32"] and dtype == torch.float32
    assert (error <= (1e-5 if exact else QUANTIZED_ERROR) * (1 + largest.unsqueeze(1))).all()


@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
def test_a_rows_bits_are_its_own(tier: str, formats: list[LinearFormat]) -> None:
    """Also in calls of more rows than go through the experts at once."""
    x, logits, experts = make(1100, 6, 72, 40, formats, 1)
    x, logits = x.bfloat16(), logits.bfloat16()
    before = library().threads
    library().set_threads(1)
    alone = {
        row: moe(x[row : row + 1], logits[row : row + 1], experts, 3, True)
        for row in (0, 1, 17, 511, 512, 550, 1099)
    }
    library().set_threads(before)
    for rows in (range(18), range(600), range(500, 1100), range(1100)):
        got = moe(x[rows.start : rows.stop], logits[rows.start : rows.stop], experts, 3, True)
        for row, expected in alone.items():
            if row in rows:
                assert torch.equal(got[row - rows.start], expected[0]), (row, rows)


def test_many_experts_on_many_threads(tier: str) -> None:
    x, logits, experts = make(300, 128, 32, 16, ["f32"], 4)
    before = library().threads
    library().set_threads(4)
    try:
        got = moe(x, logits, experts, 8, True)
    finally:
        library().set_threads(before)
    torch.testing.assert_close(
        got, expected_of(x, logits, experts, 8, True).float(), rtol=1e-5, atol=1e-5
    )


def test_of_equal_experts_the_first_are_chosen(tier: str) -> None:
    x, _, experts = make(3, 5, 20, 16, ["f32"], 2)
    logits = torch.tensor([[1.0, 2, 2, 2, 0], [0, 0, 0, 0, 0], [-math.inf, 3, -math.inf, 3, 3]])
    got = moe(x, logits, experts, 2, True)
    for row, chosen in enumerate(([1, 2], [0, 1], [1, 3])):
        only = torch.full((1, 5), -math.inf)
        only[0, chosen] = 0
        torch.testing.assert_close(
            got[row].double(),
            expected_of(x[row : row + 1], only, experts, 2, True)[0],
            rtol=1e-5,
            atol=1e-5,
            check_dtype=False,
        )


def test_a_row_of_nan_is_the_only_one_to_have_any(tier: str) -> None:
    x, logits, experts = make(4, 5, 20, 16, ["f32"], 3)
    clean = moe(x, logits, experts, 2, False)
    logits[1] = math.nan
    got = moe(x, logits, experts, 2, False)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2, 3]], clean[[0, 2, 3]])
