"""The KV write in Triton: a program a token, which converts to the cache's type on the way."""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.device import float_to_e4m3
from pagelet.kernels.gpu.elements import NAMES, accumulator
from pagelet.kernels.gpu.launch import Example, fake, launch
from pagelet.kernels.paged_attention.pages import token_size


@triton.jit
def kv_write_kernel(
    key,  # [num_tokens, HEADS, HEAD_DIM], the last dimension contiguous
    value,
    k_cache,  # [num_blocks, HEADS, page]; FP8 as bytes
    v_cache,
    k_scales,  # the same memory as float32, or None
    v_scales,
    slot_mapping,  # [num_tokens]
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE: tl.constexpr,  # elements
    HEADS_BLOCK: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    FP8: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS_BLOCK + tl.arange(0, HEADS_BLOCK)
    dims = tl.arange(0, DIM_BLOCK)[None, :]
    inside = (heads < HEADS)[:, None] & (dims < HEAD_DIM)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    offset = slot % BLOCK_SIZE
    page = (slot // BLOCK_SIZE * HEADS + heads) * PAGE  # [HEADS_BLOCK] int64
    at = page[:, None] + offset * HEAD_DIM + dims
    key_at = token * key_token_stride + heads[:, None] * key_head_stride + dims
    value_at = token * value_token_stride + heads[:, None] * value_head_stride + dims
    k = tl.load(key + key_at, mask=inside, other=0).to(ACCUMULATOR)
    v = tl.load(value + value_at, mask=inside, other=0).to(ACCUMULATOR)
    if k_scales is not None:
        scale_at = (page + BLOCK_SIZE * HEAD_DIM) // 4 + offset
        k, k_scale = _to_int8(k)
        v, v_scale = _to_int8(v)
        tl.store(k_scales + scale_at, k_scale, mask=heads < HEADS)
        tl.store(v_scales + scale_at, v_scale, mask=heads < HEADS)
    elif FP8:
        k = float_to_e4m3(k.to(tl.float32))
        v = float_to_e4m3(v.to(tl.float32))
    tl.store(k_cache + at, k.to(k_cache.dtype.element_ty), mask=inside)
    tl.store(v_cache + at, v.to(v_cache.dtype.element_ty), mask=inside)


@triton.jit
def _to_int8(x):
    """Rows of x as integers and a fraction, and the rows' scales; a NaN spoils its row."""
    x = x.to(tl.float32)
    is_nan = x != x
    finite = tl.where(is_nan, 0.0, x)
    scale = tl.max(tl.abs(finite), 1) / 127
    inverse = tl.where(scale >= 1.1754943508222875e-38, 1 / tl.maximum(scale, 1e-38), 0.0)
    scaled = finite * inverse[:, None]
    # To the nearest: the conversion to an integer drops the fraction.
    scaled = tl.where(scaled >= 0, scaled + 0.5, scaled - 0.5)
    return scaled, scale + tl.sum(tl.where(is_nan, x, 0.0), 1)


def kv_write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """As `reference.kv_write`."""
    num_kv_heads, block_size, size = kv_cache.shape[2:]
    head_dim = key.shape[2]
    assert key.shape == value.shape
    assert key.shape[1] == num_kv_heads, (key.shape, kv_cache.shape)
    assert size == token_size(head_dim, kv_cache.dtype), (key.shape, kv_cache.shape)
    assert kv_cache.is_contiguous()
    assert key.stride(2) == value.stride(2) == 1
    fp8 = kv_cache.dtype == torch.float8_e4m3fn
    pages = kv_cache.view(torch.uint8) if fp8 else kv_cache
    scales = kv_cache.view(torch.float32) if kv_cache.dtype == torch.int8 else None
    dim_block = triton.next_power_of_2(head_dim)
    heads_block = min(triton.next_power_of_2(num_kv_heads), max(1, 2048 // dim_block))
    launch(
        kv_write_kernel,
        (slot_mapping.shape[0], triton.cdiv(num_kv_heads, heads_block)),
        key,
        value,
        pages[0],
        pages[1],
        None if scales is None else scales[0],
        None if scales is None else scales[1],
        slot_mapping,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        PAGE=block_size * size,
        HEADS_BLOCK=heads_block,
        DIM_BLOCK=dim_block,
        FP8=fp8,
        ACCUMULATOR=accumulator(key.dtype),
        num_warps=4,
    )


def examples() -> Iterator[Example]:
    """Eight heads of 128, into every type of cache."""
    heads = fake(64, 48, 128, dtype=torch.bfloat16)
    slots = fake(64, dtype=torch.int64)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int8):
        cache = fake(2, 1 << 16, 8, 16, token_size(128, dtype), dtype=dtype)
        call = partial(kv_write, heads[:, 32:40], heads[:, 40:], cache, slots)
        yield Example(f"8 heads of 128, bf16 into {NAMES[dtype]}", call)
