"""The KV write in C++, into pages laid out for `paged_attention/cpu.py`."""

import torch

from pagelet.kernels.cpu.args import KvWriteArgs, OpKind
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride
from pagelet.kernels.paged_attention.cpu import CACHE_DTYPES, unsupported
from pagelet.kernels.paged_attention.pages import token_size


def record_kv_write(
    program: Program,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    rows: int = 0,
) -> None:
    """Appends the write of each token's key and value at its slot.

    key, value: [max_rows, num_kv_heads, head_dim] of one dtype, rows at any stride; kv_cache:
    [2, num_blocks, num_kv_heads, block_size, token_size(head_dim, dtype)], whose pages are laid
    out as `paged_attention/cpu_pages.h` says, float32, bfloat16 (rounded) or int8 (multiples of a
    scale of each token's key and value of a head: its largest absolute value / 127);
    slot_mapping: [max_rows] int64. Raises ValueError if the cache's shape is not one that
    `paged_attention.cpu.unsupported` accepts.
    """
    block_size = kv_cache.shape[3]
    num_kv_heads, head_dim = key.shape[1:]
    if reason := unsupported(head_dim, block_size, kv_cache.dtype):
        raise ValueError(reason)
    assert key.shape == value.shape
    assert key.dtype == value.dtype
    assert kv_cache.shape[2] == num_kv_heads, (key.shape, kv_cache.shape)
    assert kv_cache.shape[4] == token_size(head_dim, kv_cache.dtype), (key.shape, kv_cache.shape)
    assert kv_cache.is_contiguous()
    assert slot_mapping.dtype == torch.int64
    assert slot_mapping.is_contiguous()
    args = KvWriteArgs(
        rows=rows,
        key=pointer(key),
        value=pointer(value),
        k_cache=pointer(kv_cache[0]),
        v_cache=pointer(kv_cache[1]),
        slots=pointer(slot_mapping),
        key_stride=row_stride(key, name="key"),
        value_stride=row_stride(value, name="value"),
        dtype=dtype_code(key, name="key"),
        cache_dtype=CACHE_DTYPES[kv_cache.dtype],
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
    )
    program.append(OpKind.KV_WRITE, args, (key, value, kv_cache, slot_mapping))


def kv_write(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """As `reference.kv_write`, but for the layout of the pages."""
    program = Program()
    record_kv_write(program, key, value, kv_cache, slot_mapping)
    program.run(slot_mapping.shape[0])
