"""Paged attention, a request at a time, with the scores written out."""

from collections.abc import Sequence

import torch

from pagelet.kernels.paged_attention.pages import int8_pages
from pagelet.kernels.precision import accumulation_dtype


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
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each query attends to its request's context up to its own position.

    Request r has query_lens[r] tokens in this step, the last ones of its seq_lens[r] tokens; the
    keys and values of all seq_lens[r] are in the cache already. Prefill chunks and decodes mix
    freely. Query heads [h * group, (h + 1) * group) share KV head h.

    query: [num_tokens, num_heads, head_dim], the requests' tokens one after another;
    kv_cache: [2, num_blocks, num_kv_heads, block_size, token_size(head_dim, dtype)], as `pages.py`
    says;
    query_start_loc: [num_reqs + 1], seq_lens: [num_reqs]; block_table: [num_reqs, max_blocks],
    of which only blocks with tokens in some query's window are read. `sliding_window` counts the
    query's own token; `softcap` bounds the scaled scores by softcap * tanh(score / softcap);
    `sinks` [num_heads] are scores that weigh in each head's softmax without a value (gpt-oss).
    The lists and maxima repeat the tensors on the host, so that nothing waits for a device.
    Returns [num_tokens, num_heads, head_dim]; rows beyond the last request's are zeros.
    Slots outside every context may hold anything, NaN included.
    """
    num_kv_heads, block_size = kv_cache.shape[2:4]
    group = query.shape[1] // num_kv_heads
    wide = accumulation_dtype(query.dtype)
    pages, scales = int8_pages(kv_cache) if kv_cache.dtype == torch.int8 else (kv_cache, None)
    out = torch.zeros_like(query)
    start = 0
    for request, (query_len, seq_len) in enumerate(zip(query_lens_cpu, seq_lens_cpu, strict=True)):
        for i in range(query_len):
            end = seq_len - query_len + i + 1
            first = 0 if sliding_window is None else max(0, end - sliding_window)
            positions = torch.arange(first, end, device=query.device)
            blocks = block_table[request, positions // block_size].long()
            kv = pages[:, blocks, :, positions % block_size].to(wide)
            if scales is not None:
                kv *= scales[:, blocks, :, positions % block_size].unsqueeze(-1)
            key, value = kv.repeat_interleave(group, dim=2).unbind(1)  # [context, num_heads, dim]
            scores = torch.einsum("hd,shd->hs", query[start + i].to(wide), key) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat((scores, sinks.to(wide).unsqueeze(1)), dim=1)
            weights = torch.softmax(scores, dim=-1)[:, : end - first]
            out[start + i] = torch.einsum("hs,shd->hd", weights, value)
        start += query_len
    return out
