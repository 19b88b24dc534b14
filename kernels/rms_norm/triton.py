"""RMSNorm in Triton: a program a row, which stays in registers between its two passes (as in
"Fused RMSNorm" of Liger Kernel, arXiv 2410.10989)."""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.elements import NAMES, accumulator, warps_of_row
from pagelet.kernels.gpu.launch import Example, fake, launch


@triton.jit(do_not_specialize=["groups"])
def rms_norm_kernel(
    x,  # [rows, groups, size]: the last dimension is contiguous
    residual,  # [rows, groups, size] contiguous, or None
    weight,  # [size]
    out,  # [rows, groups, size] contiguous
    total,  # as out: x + residual, or None
    groups,
    x_row_stride,
    x_group_stride,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,  # SIZE's next power of two
    WEIGHT_OFFSET: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = row // groups * x_row_stride + row % groups * x_group_stride
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    wide = tl.load(x + at + columns, mask=inside, other=0).to(ACCUMULATOR)
    if residual is not None:
        wide += tl.load(residual + row * SIZE + columns, mask=inside, other=0).to(ACCUMULATOR)
        # What is normed is the sum as the next layer will find it: rounded.
        rounded = wide.to(total.dtype.element_ty)
        tl.store(total + row * SIZE + columns, rounded, mask=inside)
        wide = rounded.to(ACCUMULATOR)
    mean_square = tl.sum(wide * wide, 0) / SIZE
    scale = tl.load(weight + columns, mask=inside, other=0).to(ACCUMULATOR) + WEIGHT_OFFSET
    normed = wide * (1 / tl.sqrt(mean_square + eps)) * scale
    tl.store(out + row * SIZE + columns, normed.to(out.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False
) -> torch.Tensor:
    """As `reference.rms_norm`; x: [size], [rows, size] or [rows, groups, size]."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, out, None, eps, plus_one)
    return out


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    plus_one: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.add_rms_norm`, in one pass."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out)
    _launch(x, residual.contiguous(), weight, out, total, eps, plus_one)
    return out, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    out: torch.Tensor,
    total: torch.Tensor | None,
    eps: float,
    plus_one: bool,
) -> None:
    size = x.shape[-1]
    rows = x.reshape(-1, 1, size) if x.ndim < 3 else x
    if rows.ndim > 3 or rows.stride(2) != 1:
        rows = x.contiguous().view(-1, 1, size)
    launch(
        rms_norm_kernel,
        (rows.shape[0] * rows.shape[1],),
        rows,
        residual,
        weight.contiguous(),
        out,
        total,
        rows.shape[1],
        rows.stride(0),
        rows.stride(1),
        eps,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        WEIGHT_OFFSET=1.0 if plus_one else 0.0,
        ACCUMULATOR=accumulator(x.dtype),
        num_warps=warps_of_row(size),
    )


def examples() -> Iterator[Example]:
    """A model's norms with the residual, and norms of the heads of queries."""
    for dtype in (torch.bfloat16, torch.float16):
        hidden, weight = fake(64, 4096, dtype=dtype), fake(4096, dtype=dtype)
        yield Example(
            f"rows of 4096, residual, {NAMES[dtype]}",
            partial(add_rms_norm, hidden, hidden, weight, 1e-6),
        )
    heads = fake(64, 48, 128, dtype=torch.bfloat16)[:, :32]
    weight = fake(128, dtype=torch.bfloat16)
    yield Example("heads of 128", partial(rms_norm, heads, weight, 1e-6, True))
