"""Rotary positions in Triton: a program a token, which turns the pairs of all its heads."""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.elements import NAMES, accumulator
from pagelet.kernels.gpu.launch import Example, fake, launch


@triton.jit
def rotary_kernel(
    x,  # [num_tokens, HEADS, 2 * HALF], the last dimension contiguous
    cos,  # [num_tokens, HALF]
    sin,
    out,  # as x, contiguous
    x_token_stride,
    x_head_stride,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)[:, None]
    pairs = tl.arange(0, HALF_BLOCK)
    inside = (heads < HEADS) & (pairs < HALF)[None, :]
    c = tl.load(cos + token * HALF + pairs, mask=pairs < HALF, other=0).to(ACCUMULATOR)[None, :]
    s = tl.load(sin + token * HALF + pairs, mask=pairs < HALF, other=0).to(ACCUMULATOR)[None, :]
    at = x + token * x_token_stride + heads * x_head_stride + pairs[None, :]
    first = tl.load(at, mask=inside, other=0).to(ACCUMULATOR)
    second = tl.load(at + HALF, mask=inside, other=0).to(ACCUMULATOR)
    to = out + token * (HEADS * 2 * HALF) + heads * (2 * HALF) + pairs[None, :]
    tl.store(to, (first * c - second * s).to(out.dtype.element_ty), mask=inside)
    tl.store(to + HALF, (second * c + first * s).to(out.dtype.element_ty), mask=inside)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `reference.rotary`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_tokens, num_heads, head_dim = x.shape
    half = head_dim // 2
    half_block = triton.next_power_of_2(half)
    heads_block = min(triton.next_power_of_2(num_heads), max(1, 1024 // half_block))
    if x.stride(2) != 1:
        x = x.contiguous()
    launch(
        rotary_kernel,
        (num_tokens, triton.cdiv(num_heads, heads_block)),
        x,
        cos.contiguous(),
        sin.contiguous(),
        out,
        x.stride(0),
        x.stride(1),
        HEADS=num_heads,
        HALF=half,
        HEADS_BLOCK=heads_block,
        HALF_BLOCK=half_block,
        ACCUMULATOR=accumulator(x.dtype),
        num_warps=4,
    )
    return out


def examples() -> Iterator[Example]:
    """Queries and keys of one step."""
    angles = fake(64, 64, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        heads = fake(64, 48, 128, dtype=dtype)[:, :40]
        yield Example(f"40 heads of 128, {NAMES[dtype]}", partial(rotary, heads, angles, angles))
