"""Paged attention on torch's fused attention: decodes together, prefill chunks one by one.

Single-token queries of many requests are one batched call, with the query heads of a KV head
packed as its query length, so that keys and values are never repeated. Pages are gathered by
(block, head), which yields the layout that the attention wants without a second copy.
"""

from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional

from pagelet.kernels.precision import accumulation_dtype

# Gathered elements of K and V that one decode call may hold; bounds memory at long contexts.
_MAX_GATHERED = 1 << 25
# Query tokens of a prefill that share a mask: bounds its memory, and skips most keys that are
# masked anyway.
_PREFILL_TOKENS = 512


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
    """As `reference.paged_attention`, without int8 caches."""
    assert kv_cache.dtype != torch.int8, "int8 KV caches need Triton, or the C++ kernels"
    out = torch.zeros_like(query)
    window = None if sliding_window is None or sliding_window >= max_seq_len else sliding_window
    decodes = [row for row, length in enumerate(query_lens_cpu) if length == 1]
    if max_query_len > 1:
        start = 0
        for row, (query_len, seq_len) in enumerate(zip(query_lens_cpu, seq_lens_cpu, strict=True)):
            if query_len > 1:
                tokens = slice(start, start + query_len)
                out[tokens] = _prefill(
                    query[tokens],
                    kv_cache,
                    block_table[row],
                    seq_len,
                    scale,
                    window,
                    softcap,
                    sinks,
                )
            start += query_len
    row_elements = 2 * kv_cache[0, 0].numel() // kv_cache.shape[3]  # of one token
    limit = max(1, _MAX_GATHERED // row_elements)
    for batch in _batches(decodes, seq_lens_cpu, window, limit):
        rows = torch.tensor(batch, device=query.device)
        tokens_of_rows = query_start_loc[rows].long()
        out[tokens_of_rows] = _decode(
            query[tokens_of_rows],
            kv_cache,
            block_table[rows],
            seq_lens[rows].long(),
            max(seq_lens_cpu[row] for row in batch),
            scale,
            window,
            softcap,
            sinks,
        )
    return out


def _batches(
    rows: Sequence[int], seq_lens: Sequence[int], window: int | None, limit: int
) -> Iterator[list[int]]:
    """Cuts rows into batches of like context, so that padding never doubles the work, with at
    most `limit` padded tokens each (or one row)."""
    batch: list[int] = []
    longest = 0
    for row in sorted(rows, key=seq_lens.__getitem__, reverse=True):
        length = seq_lens[row] if window is None else min(seq_lens[row], window)
        if batch and (2 * length < longest or (len(batch) + 1) * longest > limit):
            yield batch
            batch = []
        if not batch:
            longest = length
        batch.append(row)
    if batch:
        yield batch


def _decode(
    query: torch.Tensor,  # [num_reqs, num_heads, head_dim]
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    num_reqs, num_heads, head_dim = query.shape
    num_kv_heads, block_size = kv_cache.shape[2:4]
    begin = torch.zeros_like(seq_lens) if window is None else (seq_lens - window).clamp(min=0)
    first_block = begin // block_size
    num_blocks = -(-max_seq_len // block_size)
    if window is not None:
        # A window of w tokens touches at most this many blocks, wherever it starts.
        num_blocks = min(num_blocks, (window + block_size - 2) // block_size + 1)
    columns = first_block.unsqueeze(1) + torch.arange(num_blocks, device=query.device)
    last_block = (seq_lens - 1) // block_size
    # Beyond a shorter request's end its last block is read again and masked.
    blocks = block_table.gather(1, torch.minimum(columns, last_block.unsqueeze(1)))
    key, value = _gather(kv_cache, blocks)

    positions = (columns * block_size).unsqueeze(2) + torch.arange(block_size, device=query.device)
    positions = positions.view(num_reqs, -1)
    valid = (positions < seq_lens.unsqueeze(1)) & (positions >= begin.unsqueeze(1))
    # What the mask hides must be finite: NaN minus infinity and 0 * NaN are NaN. Cleaned are only
    # the columns that some request masks.
    masked_columns = torch.nonzero(~valid.all(dim=0)).flatten()
    if masked_columns.numel():
        hidden = ~valid[:, masked_columns].view(num_reqs, 1, -1, 1)
        for x in (key, value):
            x[:, :, masked_columns] = x[:, :, masked_columns].masked_fill(hidden, 0)

    packed = query.view(num_reqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
    mask = valid.view(num_reqs, 1, 1, -1)
    if sinks is not None:
        sinks = sinks.view(num_kv_heads, -1, 1)  # of the packed queries
    return _attend(packed, key, value, mask, scale, softcap, sinks).reshape(query.shape)


def _prefill(
    query: torch.Tensor,  # [query_len, num_heads, head_dim]
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,  # [max_blocks]
    seq_len: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    query_len = query.shape[0]
    block_size = kv_cache.shape[3]
    first_position = seq_len - query_len
    first_block = _window_begin(first_position, window) // block_size
    blocks = block_table[first_block : -(-seq_len // block_size)].unsqueeze(0)
    key, value = _gather(kv_cache, blocks)
    gathered_from = first_block * block_size

    out = torch.empty_like(query)
    for start in range(first_position, seq_len, _PREFILL_TOKENS):
        end = min(start + _PREFILL_TOKENS, seq_len)
        begin = _window_begin(start, window)
        # Exactly the keys that some of these queries see: nothing else can enter the sums.
        seen = slice(begin - gathered_from, end - gathered_from)
        mask = None
        if begin != start or window is not None or softcap is not None or sinks is not None:
            queries = torch.arange(start, end, device=query.device).unsqueeze(1)
            keys = torch.arange(begin, end, device=query.device)
            mask = keys <= queries
            if window is not None:
                mask &= keys > queries - window
        tokens = slice(start - first_position, end - first_position)
        heads_first = query[tokens].transpose(0, 1).unsqueeze(0)
        attended = _attend(
            heads_first,
            key[:, :, seen],
            value[:, :, seen],
            mask,
            scale,
            softcap,
            None if sinks is None else sinks.view(-1, 1, 1).expand(-1, end - start, 1),
        )
        out[tokens] = attended[0].transpose(0, 1)
    return out


def _window_begin(position: int, window: int | None) -> int:
    """The first position that a query attends to."""
    return 0 if window is None else max(0, position + 1 - window)


def _gather(kv_cache: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the blocks [num_reqs, num_blocks], each as
    [num_reqs, num_kv_heads, num_blocks * block_size, head_dim]."""
    _, num_pages, num_kv_heads, block_size, head_dim = kv_cache.shape
    heads = torch.arange(num_kv_heads, device=blocks.device).view(1, -1, 1)
    rows = (blocks.long().unsqueeze(1) * num_kv_heads + heads).flatten()
    pages = kv_cache.view(2, num_pages * num_kv_heads, block_size * head_dim)
    shape = (blocks.shape[0], num_kv_heads, blocks.shape[1] * block_size, head_dim)
    return pages[0].index_select(0, rows).view(shape), pages[1].index_select(0, rows).view(shape)


def _attend(
    query: torch.Tensor,  # [batch, num_heads, query_len, head_dim]
    key: torch.Tensor,  # [batch, num_kv_heads, num_keys, head_dim]
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,  # [num_heads, query_len, 1]
) -> torch.Tensor:
    """Softmax attention; without a mask it is causal over equal numbers of queries and keys."""
    grouped = query.shape[1] != key.shape[1]
    if softcap is None and sinks is None:
        return functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )
    assert mask is not None
    if grouped:
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    wide = accumulation_dtype(query.dtype)
    scores = query.to(wide) @ key.to(wide).transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(wide).expand(scores.shape[0], -1, -1, -1)), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]]
    return (weights @ value.to(wide)).to(query.dtype)
