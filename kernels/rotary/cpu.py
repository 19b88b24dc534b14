"""Rotary positions and the KV write in C++, in one pass over the projected heads."""

import torch

from pagelet.kernels.cpu.args import OpKind, RotaryArgs
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride
from pagelet.kernels.paged_attention.cpu import CACHE_DTYPES, unsupported
from pagelet.kernels.paged_attention.pages import token_size


def record_rotary_kv_write(
    program: Program,
    heads: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    num_heads: int,
    rows: int = 0,
) -> None:
    """Appends the rotation of queries and keys, in place, and the write of keys and values.

    heads: [max_rows, num_heads + 2 * num_kv_heads, head_dim], queries, keys, values;
    positions, slot_mapping: [max_rows] int64; cos_sin: [max_positions, 2, head_dim / 2] float32;
    kv_cache: [2, num_blocks, num_kv_heads, block_size, token_size(head_dim, dtype)], of any dtype
    and laid out as for `record_kv_write`. Raises ValueError if the cache's shape is not one that
    `paged_attention.cpu.unsupported` accepts.
    """
    num_kv_heads, block_size = kv_cache.shape[2:4]
    head_dim = heads.shape[2]
    if reason := unsupported(head_dim, block_size, kv_cache.dtype):
        raise ValueError(reason)
    assert heads.shape[1] == num_heads + 2 * num_kv_heads, heads.shape
    assert kv_cache.shape[4] == token_size(head_dim, kv_cache.dtype), (heads.shape, kv_cache.shape)
    assert kv_cache.is_contiguous()
    assert cos_sin.dtype == torch.float32
    assert cos_sin.is_contiguous()
    assert cos_sin.shape[1:] == (2, head_dim // 2), cos_sin.shape
    for indices in (positions, slot_mapping):
        assert indices.dtype == torch.int64
        assert indices.is_contiguous()
    args = RotaryArgs(
        rows=rows,
        x=pointer(heads),
        positions=pointer(positions),
        cos_sin=pointer(cos_sin),
        k_cache=pointer(kv_cache[0]),
        v_cache=pointer(kv_cache[1]),
        slots=pointer(slot_mapping),
        x_stride=row_stride(heads, name="heads"),
        dtype=dtype_code(heads, name="heads"),
        cache_dtype=CACHE_DTYPES[kv_cache.dtype],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
    )
    program.append(OpKind.ROTARY, args, (heads, positions, cos_sin, kv_cache, slot_mapping))
