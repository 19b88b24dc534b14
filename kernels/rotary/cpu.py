"""Rotary positions and the KV write in C++, in one pass over the projected heads."""

import torch

from pagelet.kernels.cpu.args import OpKind, RotaryArgs
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride


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
    kv_cache: [2, num_blocks, num_kv_heads, block_size, head_dim] of the heads' dtype, whose pages
    of keys are laid out as `paged_attention/cpu_pages.h` says: block_size is a multiple of 16, and
    head_dim is even.
    """
    num_kv_heads, block_size, head_dim = kv_cache.shape[2:]
    assert heads.shape[1:] == (num_heads + 2 * num_kv_heads, head_dim), heads.shape
    assert heads.dtype == kv_cache.dtype
    assert kv_cache.is_contiguous()
    assert (block_size % 16, head_dim % 2) == (0, 0), (block_size, head_dim)
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
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
    )
    program.append(OpKind.ROTARY, args, (heads, positions, cos_sin, kv_cache, slot_mapping))
