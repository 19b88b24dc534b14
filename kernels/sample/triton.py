"""Sampling in Triton: a program a row, which never stores or sorts the row's weights.

A filter comes down to a threshold of weights. The one of top-k or top-p is found from its leading
bits on, two at a time, by counting or adding up what is not below each of three candidates: a
radix selection (FlashInfer, which does not sort either, draws and rejects instead). The weights
are computed anew in every pass, in the operations that `weights.py` fixes; products and sums must
not be fused, which the option `enable_fp_fusion` sees to.
"""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.elements import NAMES
from pagelet.kernels.gpu.launch import Example, fake, launch
from pagelet.kernels.sample.weights import LEAST_EXPONENT, POWER_OF_TWO, UNIT

_BLOCK = 2048
_LEVELS = 21  # of two bits each: weights are at most 2**40

_UNIT = tl.constexpr(UNIT)
_LEAST = tl.constexpr(LEAST_EXPONENT)
_LOG2_E = tl.constexpr(1.4426950408889634)
_COEFFICIENTS = tuple(tl.constexpr(value) for value in reversed(POWER_OF_TWO))
_C6, _C5, _C4, _C3, _C2, _C1, _C0 = _COEFFICIENTS


@triton.jit
def _weights(logits, columns, vocab_size, maximum, scale):
    """`integer_weights` of some columns, int64; 0 beyond the vocabulary."""
    inside = columns < vocab_size
    logit = tl.load(logits + columns, mask=inside, other=float("-inf"))
    exponent = tl.maximum((logit - maximum).to(tl.float32) * scale, _LEAST)
    whole = tl.floor(exponent)
    fraction = exponent - whole
    power = fraction * _C6 + _C5
    power = power * fraction + _C4
    power = power * fraction + _C3
    power = power * fraction + _C2
    power = power * fraction + _C1
    power = power * fraction + _C0
    return (power * _UNIT).to(tl.int64) >> (-whole).to(tl.int64)


@triton.jit
def _threshold(
    logits,
    vocab_size,
    maximum,
    scale,
    least,  # weights below it are dropped already
    needed,
    COUNT: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest number such that the weights that reach it are, or with COUNT=False sum to, at
    least `needed`; 0 if there is none."""
    found = tl.zeros((), tl.int64)
    for level in range(LEVELS):
        step = tl.full((), 1, tl.int64) << (2 * (LEVELS - 1 - level))
        # One accumulator a thread and candidate: a row is reduced once a level.
        of_first = tl.zeros((BLOCK,), tl.int64)
        of_second = tl.zeros((BLOCK,), tl.int64)
        of_third = tl.zeros((BLOCK,), tl.int64)
        for start in range(0, vocab_size, BLOCK):
            weight = _weights(logits, start + tl.arange(0, BLOCK), vocab_size, maximum, scale)
            weight = tl.where(weight >= least, weight, 0)
            amount = tl.full((BLOCK,), 1, tl.int64) if COUNT else weight
            of_first += tl.where(weight >= found + step, amount, 0)
            of_second += tl.where(weight >= found + 2 * step, amount, 0)
            of_third += tl.where(weight >= found + 3 * step, amount, 0)
        digit = (tl.sum(of_first, 0) >= needed).to(tl.int64)
        digit += (tl.sum(of_second, 0) >= needed).to(tl.int64)
        digit += (tl.sum(of_third, 0) >= needed).to(tl.int64)
        found += digit * step
    return found


@triton.jit
def _total(logits, vocab_size, maximum, scale, least, BLOCK: tl.constexpr):
    """The sum of the weights from `least` on."""
    sums = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, vocab_size, BLOCK):
        weight = _weights(logits, start + tl.arange(0, BLOCK), vocab_size, maximum, scale)
        sums += tl.where(weight >= least, weight, 0)
    return tl.sum(sums, 0)


@triton.jit
def _draw(logits, vocab_size, maximum, scale, least, target, BLOCK: tl.constexpr):
    """The first column whose inclusive prefix sum of weights from `least` on is over `target`."""
    before = tl.zeros((), tl.int64)
    block = tl.zeros((), tl.int32)
    before_block = tl.zeros((), tl.int64)
    for start in range(0, vocab_size, BLOCK):
        weight = _weights(logits, start + tl.arange(0, BLOCK), vocab_size, maximum, scale)
        after = before + tl.sum(tl.where(weight >= least, weight, 0), 0)
        crosses = (before <= target) & (after > target)
        block = tl.where(crosses, start, block)
        before_block = tl.where(crosses, before, before_block)
        before = after
    columns = block + tl.arange(0, BLOCK)
    weight = _weights(logits, columns, vocab_size, maximum, scale)
    sums = before_block + tl.cumsum(tl.where(weight >= least, weight, 0), 0)
    return tl.min(tl.where(sums > target, columns, vocab_size), 0)


@triton.jit(do_not_specialize=["has_temperature", "has_min_p", "has_top_k", "has_top_p"])
def sample_kernel(
    logits,  # [num_rows, vocab_size], the last dimension contiguous
    temperature,  # [num_rows] float64, as uniforms, min_p and top_p; top_k int64
    uniforms,
    min_p,
    top_k,
    top_p,
    token_ids,  # [num_rows] int64
    broken,  # [num_rows] bool
    row_stride,
    vocab_size,
    has_temperature,  # whether there is such a column: a flag, as a constant would compile anew
    has_min_p,
    has_top_k,
    has_top_p,
    LEVELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    lane = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), logits.dtype.element_ty)
    nans = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab_size, BLOCK):
        inside = start + lane < vocab_size
        logit = tl.load(logits + start + lane, mask=inside, other=float("-inf"))
        nans |= (logit != logit).to(tl.int32)
        largest = tl.maximum(largest, logit)
    maximum = tl.max(largest, 0)
    is_nan = tl.max(nans, 0) > 0
    is_broken = is_nan | (tl.abs(maximum) == float("inf"))
    degree = tl.zeros((), tl.float64)
    if has_temperature:
        degree = tl.load(temperature + row)
    token = tl.zeros((), tl.int32)
    if (degree == 0.0) & (is_broken == 0):
        first = tl.full((BLOCK,), 2147483647, tl.int32)
        for start in range(0, vocab_size, BLOCK):
            inside = start + lane < vocab_size
            logit = tl.load(logits + start + lane, mask=inside, other=float("-inf"))
            first = tl.minimum(first, tl.where(logit == maximum, start + lane, 2147483647))
        token = tl.min(first, 0)
    if (degree != 0.0) & (is_broken == 0):
        scale = (tl.full((), _LOG2_E, tl.float64) / degree).to(tl.float32)
        least = tl.zeros((), tl.int64)
        if has_min_p:
            least = tl.ceil(tl.load(min_p + row) * _UNIT).to(tl.int64)
        if has_top_k:
            k = tl.load(top_k + row)
            if (k > 0) & (k < vocab_size):
                kth = _threshold(logits, vocab_size, maximum, scale, least, k, True, LEVELS, BLOCK)
                least = tl.maximum(least, kth)
        total = _total(logits, vocab_size, maximum, scale, least, BLOCK)
        if has_top_p:
            share = tl.load(top_p + row)
            if share < 1.0:
                needed = tl.ceil(share * total.to(tl.float64)).to(tl.int64)
                needed = tl.maximum(needed, 1)
                last = _threshold(
                    logits, vocab_size, maximum, scale, least, needed, False, LEVELS, BLOCK
                )
                least = tl.maximum(least, last)
                total = _total(logits, vocab_size, maximum, scale, least, BLOCK)
        target = tl.floor(tl.load(uniforms + row) * total.to(tl.float64)).to(tl.int64)
        target = tl.minimum(target, total - 1)
        token = _draw(logits, vocab_size, maximum, scale, least, target, BLOCK)
    tl.store(token_ids + row, token.to(tl.int64))
    tl.store(broken + row, is_broken)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor | None,
    uniforms: torch.Tensor | None,
    *,
    min_p: torch.Tensor | None = None,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    max_top_k: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `pagelet.kernels.sample.reference.sample`."""
    num_rows, vocab_size = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    broken = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    unread = torch.empty(num_rows, dtype=torch.float64, device=logits.device)

    def column(values: torch.Tensor | None) -> torch.Tensor:
        """In place of a column that is not there one that is not read."""
        return unread if values is None else values.contiguous()

    launch(
        sample_kernel,
        (num_rows,),
        logits,
        column(temperature),
        column(uniforms),
        column(min_p),
        token_ids if top_k is None else top_k.contiguous(),
        column(top_p),
        token_ids,
        broken,
        logits.stride(0),
        vocab_size,
        int(temperature is not None),
        int(min_p is not None),
        int(top_k is not None),
        int(top_p is not None),
        LEVELS=_LEVELS,
        BLOCK=_BLOCK,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return token_ids, broken


def examples() -> Iterator[Example]:
    """Llama 3's vocabulary with all filters."""
    for dtype in (torch.float32, torch.float64):
        column, top_k = fake(64, dtype=torch.float64), fake(64, dtype=torch.int64)
        filters = {"min_p": column, "top_k": top_k, "top_p": column, "max_top_k": 50}
        yield Example(
            f"128256 logits, {NAMES[dtype]}",
            partial(sample, fake(64, 128256, dtype=dtype), column, column, **filters),  # type: ignore[arg-type]
        )
