"""Rotary positions and the KV write in Triton, in one launch.

A program has one token and some of its heads: it either turns queries, or turns keys and writes
them with their values, so that turned keys are in no other memory than the cache.
"""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.device import float_to_e4m3
from pagelet.kernels.gpu.elements import NAMES, accumulator, warps_of_row
from pagelet.kernels.gpu.launch import Example, fake, launch
from pagelet.kernels.paged_attention.pages import token_size


@triton.jit
def rotary_kv_write_kernel(
    query,  # [num_tokens, HEADS, 2 * HALF], the last dimension contiguous
    key,  # [num_tokens, KV_HEADS, 2 * HALF], as query
    value,
    cos,  # [num_tokens, HALF]
    sin,
    out,  # as query, contiguous
    k_cache,  # [num_blocks, KV_HEADS, page]; FP8 as bytes
    v_cache,
    k_scales,  # the same memory as float32, or None
    v_scales,
    slot_mapping,  # [num_tokens]
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE: tl.constexpr,  # elements
    QUERY_PROGRAMS: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    FP8: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    pairs = tl.arange(0, HALF_BLOCK)
    c = tl.load(cos + token * HALF + pairs, mask=pairs < HALF, other=0).to(ACCUMULATOR)[None, :]
    s = tl.load(sin + token * HALF + pairs, mask=pairs < HALF, other=0).to(ACCUMULATOR)[None, :]
    if part < QUERY_PROGRAMS:
        heads = part * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
        inside = (heads < HEADS)[:, None] & (pairs < HALF)[None, :]
        at = query + token * query_token_stride
        first, second = _halves(at, heads, pairs, query_head_stride, inside, HALF)
        first, second = _turn(first.to(ACCUMULATOR), second.to(ACCUMULATOR), c, s)
        to = out + (token * HEADS + heads)[:, None] * (2 * HALF) + pairs[None, :]
        tl.store(to, first.to(out.dtype.element_ty), mask=inside)
        tl.store(to + HALF, second.to(out.dtype.element_ty), mask=inside)
        return
    heads = (part - QUERY_PROGRAMS) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
    inside = (heads < KV_HEADS)[:, None] & (pairs < HALF)[None, :]
    slot = tl.load(slot_mapping + token).to(tl.int64)
    offset = slot % BLOCK_SIZE
    page = (slot // BLOCK_SIZE * KV_HEADS + heads) * PAGE  # [HEADS_BLOCK] int64
    to = page[:, None] + offset * (2 * HALF) + pairs[None, :]
    scale_at = (page + BLOCK_SIZE * 2 * HALF) // 4 + offset
    at = key + token * key_token_stride
    first, second = _halves(at, heads, pairs, key_head_stride, inside, HALF)
    k_first, k_second = _turn(first.to(ACCUMULATOR), second.to(ACCUMULATOR), c, s)
    # Rounded to the model's type, as if the turned keys had been written out before.
    k_first = k_first.to(key.dtype.element_ty).to(ACCUMULATOR)
    k_second = k_second.to(key.dtype.element_ty).to(ACCUMULATOR)
    _store(k_cache, k_scales, to, scale_at, k_first, k_second, heads < KV_HEADS, inside, HALF, FP8)
    at = value + token * value_token_stride
    first, second = _halves(at, heads, pairs, value_head_stride, inside, HALF)
    first, second = first.to(ACCUMULATOR), second.to(ACCUMULATOR)
    _store(v_cache, v_scales, to, scale_at, first, second, heads < KV_HEADS, inside, HALF, FP8)


@triton.jit
def _halves(at, heads, pairs, head_stride, inside, HALF: tl.constexpr):
    """The first and second halves of a token's heads, each [HEADS_BLOCK, HALF_BLOCK]."""
    at = at + heads[:, None] * head_stride + pairs[None, :]
    return tl.load(at, mask=inside, other=0), tl.load(at + HALF, mask=inside, other=0)


@triton.jit
def _turn(first, second, c, s):
    return first * c - second * s, second * c + first * s


@triton.jit
def _store(
    cache,
    scales,
    at,
    scale_at,
    first,
    second,
    is_head,
    inside,
    HALF: tl.constexpr,
    FP8: tl.constexpr,
):
    """Writes halves of heads in the cache's type. As integers with a scale, to the nearest, where a
    NaN spoils its head."""
    if scales is not None:
        first, second = first.to(tl.float32), second.to(tl.float32)
        largest = tl.maximum(_largest(first), _largest(second))
        scale = largest / 127
        inverse = tl.where(scale >= 1.1754943508222875e-38, 1 / tl.maximum(scale, 1e-38), 0.0)
        poison = tl.sum(tl.where(first != first, first, 0.0), 1)
        poison += tl.sum(tl.where(second != second, second, 0.0), 1)
        tl.store(scales + scale_at, scale + poison, mask=is_head)
        first, second = _to_nearest(first, inverse), _to_nearest(second, inverse)
    elif FP8:
        first, second = float_to_e4m3(first.to(tl.float32)), float_to_e4m3(second.to(tl.float32))
    tl.store(cache + at, first.to(cache.dtype.element_ty), mask=inside)
    tl.store(cache + at + HALF, second.to(cache.dtype.element_ty), mask=inside)


@triton.jit
def _largest(x):
    """The largest magnitude of each row, but for NaN."""
    return tl.max(tl.abs(tl.where(x != x, 0.0, x)), 1)


@triton.jit
def _to_nearest(x, inverse):
    """Numbers whose conversion to an integer, which drops the fraction, is x * inverse rounded."""
    scaled = tl.where(x != x, 0.0, x) * inverse[:, None]
    return tl.where(scaled >= 0, scaled + 0.5, scaled - 0.5)


def rotary_kv_write(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """As `reference.rotary_kv_write`."""
    num_kv_heads, block_size, size = kv_cache.shape[2:]
    num_tokens, num_heads, head_dim = query.shape
    half = head_dim // 2
    assert key.shape == value.shape == (num_tokens, num_kv_heads, head_dim), (
        key.shape,
        query.shape,
    )
    assert size == token_size(head_dim, kv_cache.dtype), (key.shape, kv_cache.shape)
    assert kv_cache.is_contiguous()
    assert query.stride(2) == key.stride(2) == value.stride(2) == 1
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    fp8 = kv_cache.dtype == torch.float8_e4m3fn
    pages = kv_cache.view(torch.uint8) if fp8 else kv_cache
    scales = kv_cache.view(torch.float32) if kv_cache.dtype == torch.int8 else (None, None)
    half_block = triton.next_power_of_2(half)
    heads_block = min(triton.next_power_of_2(num_kv_heads), max(1, 1024 // half_block))
    query_programs = triton.cdiv(num_heads, heads_block)
    launch(
        rotary_kv_write_kernel,
        (num_tokens, query_programs + triton.cdiv(num_kv_heads, heads_block)),
        query,
        key,
        value,
        cos.contiguous(),
        sin.contiguous(),
        out,
        pages[0],
        pages[1],
        scales[0],
        scales[1],
        slot_mapping,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HALF=half,
        BLOCK_SIZE=block_size,
        PAGE=block_size * size,
        QUERY_PROGRAMS=query_programs,
        HEADS_BLOCK=heads_block,
        HALF_BLOCK=half_block,
        FP8=fp8,
        ACCUMULATOR=accumulator(query.dtype),
        num_warps=warps_of_row(2 * heads_block * half_block),
    )
    return out


def examples() -> Iterator[Example]:
    """32 queries and eight keys of 128, into every type of cache."""
    angles, slots = fake(64, 64, dtype=torch.float32), fake(64, dtype=torch.int64)
    for dtype, cache_dtype in (
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.bfloat16, torch.int8),
        (torch.float32, torch.float32),
    ):
        heads = fake(64, 48, 128, dtype=dtype)
        cache = fake(2, 1 << 16, 8, 16, token_size(128, cache_dtype), dtype=cache_dtype)
        yield Example(
            f"32/8 heads of 128, {NAMES[dtype]} into {NAMES[cache_dtype]}",
            partial(
                rotary_kv_write,
                heads[:, :32],
                heads[:, 32:40],
                heads[:, 40:],
                angles,
                angles,
                cache,
                slots,
            ),
        )
