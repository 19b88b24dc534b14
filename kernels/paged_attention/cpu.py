"""Paged attention in C++, batch-invariant: a row's bits depend on its own context only."""

from collections.abc import Sequence

import torch

from pagelet.kernels.cpu.args import DTYPES, OpKind, PagedAttentionArgs
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride
from pagelet.kernels.paged_attention.pages import token_size

PANEL_TOKENS = 16
"""Tokens of a panel of keys (`cpu_pages.h`); blocks are whole panels."""
MAX_HEAD_DIM = 256
CACHE_DTYPES = {**DTYPES, torch.int8: 2}


def unsupported(head_dim: int, block_size: int, dtype: torch.dtype) -> str | None:
    """Why the library has no attention over such a KV cache, or None if it has."""
    if dtype not in CACHE_DTYPES:
        return f"the CPU library has no {dtype} KV cache, only float32, bfloat16 and int8"
    if head_dim % 8 or head_dim > MAX_HEAD_DIM:
        return f"head_dim {head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}"
    if block_size % PANEL_TOKENS:
        return f"block_size {block_size} is not a multiple of {PANEL_TOKENS}"
    return None


def record_paged_attention(
    program: Program,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    requests: int = 0,
) -> None:
    """Appends out = attention of the requests' new tokens to their contexts.

    query, out: [max_tokens, num_heads, head_dim] of one dtype, rows at any stride; kv_cache:
    [2, num_blocks, num_kv_heads, block_size, token_size(head_dim, dtype)] float32, bfloat16 or
    int8, its pages laid out as `cpu_pages.h` says, which `record_kv_write` does;
    query_start_loc: [max_requests + 1], seq_lens: [max_requests], block_table:
    [max_requests, max_blocks], int32 and read anew by each run. Which of the run's sizes is the
    number of requests: `requests`.
    Rows of `out` beyond the last request's stay as they are. Raises ValueError if the cache's
    shape is not one that `unsupported` accepts.
    """
    num_kv_heads, block_size = kv_cache.shape[2:4]
    num_heads, head_dim = query.shape[1:]
    if reason := unsupported(head_dim, block_size, kv_cache.dtype):
        raise ValueError(reason)
    assert query.shape == out.shape, (query.shape, out.shape)
    assert kv_cache.shape[4] == token_size(head_dim, kv_cache.dtype), (query.shape, kv_cache.shape)
    assert num_heads % num_kv_heads == 0, (num_heads, num_kv_heads)
    assert query.dtype == out.dtype
    assert kv_cache.is_contiguous()
    for indices in (query_start_loc, seq_lens, block_table):
        assert indices.dtype == torch.int32
        assert indices.stride(-1) == 1
    args = PagedAttentionArgs(
        rows=requests,
        query=pointer(query),
        k_cache=pointer(kv_cache[0]),
        v_cache=pointer(kv_cache[1]),
        query_start_loc=pointer(query_start_loc),
        seq_lens=pointer(seq_lens),
        block_table=pointer(block_table),
        out=pointer(out),
        query_stride=row_stride(query, name="query"),
        out_stride=row_stride(out, name="out"),
        block_table_stride=block_table.stride(0),
        dtype=dtype_code(query, name="query"),
        cache_dtype=CACHE_DTYPES[kv_cache.dtype],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        sliding_window=sliding_window or 0,
        scale=scale,
        softcap=softcap or 0.0,
    )
    buffers = (query, kv_cache, query_start_loc, seq_lens, block_table, out)
    program.append(OpKind.PAGED_ATTENTION, args, buffers)


def paged_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    max_query_len: int,
    max_seq_len: int,
    query_lens_cpu: Sequence[int],
    seq_lens_cpu: Sequence[int],
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """As `reference.paged_attention`, over a cache that `kv_write.cpu.kv_write` wrote."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    program = Program()
    record_paged_attention(
        program,
        query,
        kv_cache,
        query_start_loc,
        seq_lens,
        block_table,
        out,
        scale=scale,
        sliding_window=sliding_window,
        softcap=softcap,
    )
    program.run(len(seq_lens_cpu))
    return out
