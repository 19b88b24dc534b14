"""Paged attention in Triton.

One kernel does prefill chunks and decodes of a batch: a program has some tokens of one request,
with all query heads that share a KV head packed beside them, and reads each page once for all of
these (the tiles of vLLM's unified attention; online softmax as in FlashAttention-2, arXiv
2307.08691). A batch of decodes alone that is too small to fill the GPU splits each context among
several programs, whose partial results a second kernel merges by their log-sum-exp
(Flash-Decoding).

Scores are kept in base 2. Bounds of loops are multiples of the tile counted from the context's
first token, so that what a row sums, and in which order, depends on its own context only.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.device import e4m3_to_float, tanh
from pagelet.kernels.gpu.elements import NAMES, accumulator
from pagelet.kernels.gpu.launch import INTERPRETED, Example, architecture, fake, launch
from pagelet.kernels.gpu.tile import register_option
from pagelet.kernels.paged_attention.gpu_settings import (
    MAX_SPLITS,
    choose_settings,
    choose_splits,
    is_crowded,
)
from pagelet.kernels.paged_attention.pages import token_size


@triton.jit
def _attend(
    query,  # [ROWS, DIM_BLOCK]
    positions,  # [ROWS] of the queries in their context, -1 for rows without one
    begin,  # of the keys, a multiple of TILE
    end,
    first_key,  # before it no row of the tile sees keys: they may be poisoned
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    block_row,  # the request's row of the block table
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    """The online softmax over keys [begin, end): the rows' largest scores [ROWS], sums of weights
    [ROWS], and weighted sums of values [ROWS, DIM_BLOCK]."""
    dims = tl.arange(0, DIM_BLOCK)
    largest = tl.full((ROWS,), float("-inf"), ACCUMULATOR)
    total = tl.zeros((ROWS,), ACCUMULATOR)
    sums = tl.zeros((ROWS, DIM_BLOCK), ACCUMULATOR)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        keys = start + tl.arange(0, TILE)
        real = (keys >= first_key) & (keys < end)
        block = tl.load(block_row + keys // BLOCK_SIZE, mask=real, other=0).to(tl.int64)
        page = (block * KV_HEADS + kv_head) * PAGE
        offset = keys % BLOCK_SIZE
        at = page + offset * HEAD_DIM
        k_at = k_cache + at[None, :] + dims[:, None]
        k = tl.load(k_at, mask=real[None, :] & (dims < HEAD_DIM)[:, None], other=0)
        if FP8:
            k = e4m3_to_float(k)
        k = k.to(ACCUMULATOR if UPCAST else query.dtype)
        scores = tl.dot(query, k, input_precision="ieee", out_dtype=ACCUMULATOR)
        if k_scales is not None:
            scale_at = (page + BLOCK_SIZE * HEAD_DIM) // 4 + offset
            scores *= tl.load(k_scales + scale_at, mask=real, other=0)[None, :]
        if SOFTCAP is not None:
            scores = SOFTCAP * tanh(scores * (SCALE / SOFTCAP)) * 1.4426950408889634
        else:
            scores *= SCALE * 1.4426950408889634
        seen = real[None, :] & (keys[None, :] <= positions[:, None])
        if WINDOW is not None:
            seen &= keys[None, :] > positions[:, None] - WINDOW
        scores = tl.where(seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet: minus infinity less minus infinity would be NaN.
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(largest - base)
        total = total * decay + tl.sum(weights, 1)
        if v_scales is not None:
            weights *= tl.load(v_scales + scale_at, mask=real, other=0)[None, :]
        v_at = v_cache + at[:, None] + dims[None, :]
        v = tl.load(v_at, mask=real[:, None] & (dims < HEAD_DIM)[None, :], other=0)
        if FP8:
            v = e4m3_to_float(v)
        v = v.to(ACCUMULATOR if UPCAST else query.dtype)
        sums = sums * decay[:, None]
        sums = tl.dot(weights.to(v.dtype), v, sums, input_precision="ieee", out_dtype=ACCUMULATOR)
        largest = new_largest
    return largest, total, sums


@triton.jit(do_not_specialize=["num_reqs", "num_tokens", "search_steps", "block_table_stride"])
def paged_attention_kernel(
    query,  # [num_tokens, heads, HEAD_DIM], the last dimension contiguous
    k_cache,  # [num_blocks, KV_HEADS, page]; FP8 as bytes
    v_cache,
    k_scales,  # the same memory as float32, or None
    v_scales,
    query_start_loc,  # [num_reqs + 1]
    seq_lens,  # [num_reqs]
    block_table,  # [num_reqs, max_blocks]
    sinks,  # [heads], or None
    out,  # [num_tokens, heads, HEAD_DIM] contiguous
    num_reqs,
    num_tokens,
    search_steps,  # ceil(log2(num_reqs + 1))
    query_token_stride,
    query_head_stride,
    block_table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,  # of a tile: TOKENS * GROUP of them are used
    TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    # Request r has the tiles from query_start_loc[r] // TOKENS + r on: at least as many as it
    # needs. What follows the last request is one more, whose rows are zeros.
    low = 0
    high = num_reqs
    for _ in range(search_steps):
        middle = (low + high + 1) // 2
        at_or_before = tl.load(query_start_loc + middle) // TOKENS + middle <= tile
        low = tl.where(at_or_before, middle, low)
        high = tl.where(at_or_before, high, middle - 1)
    request = low
    start = tl.load(query_start_loc + request)
    is_padding = request == num_reqs
    stop = tl.load(query_start_loc + request + 1, mask=request < num_reqs, other=num_tokens)
    first = (tile - start // TOKENS - request) * TOKENS  # of the request's tokens
    if first >= stop - start:
        return

    row = tl.arange(0, ROWS)
    token = first + row // GROUP
    used = (row < TOKENS * GROUP) & (token < stop - start)
    head = kv_head * GROUP + row % GROUP
    dims = tl.arange(0, DIM_BLOCK)
    inside = used[:, None] & (dims < HEAD_DIM)[None, :]
    flat = (start + token).to(tl.int64)
    out_at = out + (flat * (KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM + dims[None, :]
    if is_padding:
        tl.store(out_at, tl.zeros((ROWS, DIM_BLOCK), out.dtype.element_ty), mask=inside)
        return

    seq_len = tl.load(seq_lens + request)
    before = seq_len - (stop - start)
    positions = tl.where(used, before + token, -1)
    end = tl.minimum(seq_len, before + first + TOKENS)
    first_key = 0
    if WINDOW is not None:
        first_key = tl.maximum(0, before + first + 1 - WINDOW)
    q_at = query + flat[:, None] * query_token_stride + head[:, None] * query_head_stride
    q = tl.load(q_at + dims[None, :], mask=inside, other=0)
    if UPCAST:
        q = q.to(ACCUMULATOR)
    largest, total, sums = _attend(
        q,
        positions,
        first_key // TILE * TILE,
        end,
        first_key,
        k_cache,
        v_cache,
        k_scales,
        v_scales,
        block_table + tl.cast(request, tl.int64) * block_table_stride,
        kv_head,
        KV_HEADS,
        HEAD_DIM,
        DIM_BLOCK,
        BLOCK_SIZE,
        PAGE,
        ROWS,
        TILE,
        STAGES,
        SCALE,
        WINDOW,
        SOFTCAP,
        FP8,
        UPCAST,
        ACCUMULATOR,
    )
    if sinks is not None:
        sink = tl.load(sinks + head, mask=used, other=0).to(ACCUMULATOR) * 1.4426950408889634
        # With a sink no row is empty: it weighs exp2(sink - largest), and without keys all.
        base = tl.where(largest == float("-inf"), sink, largest)
        total += tl.exp2(sink - base)
    # A row without keys has sums of 0 and is 0.
    result = sums / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(out_at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["splits", "block_table_stride"])
def split_decode_kernel(
    query,  # [num_tokens, heads, HEAD_DIM], the last dimension contiguous
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    query_start_loc,  # [num_reqs + 1], of which each request has at most one token
    seq_lens,
    block_table,
    partial_out,  # [num_tokens, heads, splits, HEAD_DIM] of the accumulator's type
    partial_lse,  # [num_tokens, heads, splits], base 2
    splits,
    query_token_stride,
    query_head_stride,
    block_table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    FP8: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    token = tl.load(query_start_loc + request).to(tl.int64)
    if tl.load(query_start_loc + request + 1) == token:
        return
    seq_len = tl.load(seq_lens + request)
    first_key = 0
    if WINDOW is not None:
        first_key = tl.maximum(0, seq_len - WINDOW)
    # Whole tiles, evenly: the last splits of a short context are empty.
    first_tile = first_key // TILE
    tiles = tl.cdiv(tl.cdiv(seq_len, TILE) - first_tile, splits)
    begin = (first_tile + split * tiles) * TILE
    end = tl.minimum(seq_len, begin + tiles * TILE)

    row = tl.arange(0, ROWS)
    used = row < GROUP
    head = kv_head * GROUP + row
    dims = tl.arange(0, DIM_BLOCK)
    inside = used[:, None] & (dims < HEAD_DIM)[None, :]
    q_at = query + token * query_token_stride + head[:, None] * query_head_stride
    q = tl.load(q_at + dims[None, :], mask=inside, other=0)
    if UPCAST:
        q = q.to(ACCUMULATOR)
    largest, total, sums = _attend(
        q,
        tl.where(used, seq_len - 1, -1),
        begin,
        end,
        first_key,
        k_cache,
        v_cache,
        k_scales,
        v_scales,
        block_table + request * block_table_stride,
        kv_head,
        KV_HEADS,
        HEAD_DIM,
        DIM_BLOCK,
        BLOCK_SIZE,
        PAGE,
        ROWS,
        TILE,
        STAGES,
        SCALE,
        WINDOW,
        SOFTCAP,
        FP8,
        UPCAST,
        ACCUMULATOR,
    )
    nonzero = tl.where(total == 0, 1.0, total)
    at = (token * (KV_HEADS * GROUP) + head) * splits + split
    # Of an empty split: minus infinity, which the merge does not read further.
    tl.store(partial_lse + at, largest + tl.log2(nonzero), mask=used)
    out_at = partial_out + at[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_at, sums / nonzero[:, None], mask=inside)


@triton.jit(do_not_specialize=["num_reqs", "splits"])
def merge_splits_kernel(
    partial_out,  # [num_tokens, HEADS, splits, HEAD_DIM]
    partial_lse,  # [num_tokens, HEADS, splits]
    query_start_loc,
    sinks,  # [HEADS], or None
    out,  # [num_tokens, HEADS, HEAD_DIM]
    num_reqs,
    splits,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    SPLITS_BLOCK: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    is_real = token < tl.load(query_start_loc + num_reqs)
    split = tl.arange(0, SPLITS_BLOCK)
    dims = tl.arange(0, DIM_BLOCK)
    at = token * HEADS + head
    exists = (split < splits) & is_real
    lse = tl.load(partial_lse + at * splits + split, mask=exists, other=float("-inf"))
    largest = tl.max(lse, 0)
    sink = float("-inf")
    if sinks is not None:
        sink = tl.load(sinks + head).to(ACCUMULATOR) * 1.4426950408889634
        largest = tl.maximum(largest, sink)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp2(lse - base)
    total = tl.sum(weights, 0)
    if sinks is not None:
        total += tl.exp2(sink - base)
    read = (exists & (lse != float("-inf")))[:, None] & (dims < HEAD_DIM)[None, :]
    values = tl.load(
        partial_out + (at * splits + split)[:, None] * HEAD_DIM + dims[None, :], mask=read, other=0
    )
    result = tl.sum(values * weights[:, None], 0) / tl.where(total == 0, 1.0, total)
    out_at = out + at * HEAD_DIM + dims
    tl.store(out_at, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


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
    """As `reference.paged_attention`. The grid depends on shapes and on the two maxima only, so a
    launch may be captured in a CUDA graph with the largest maxima that its replays will have."""
    num_kv_heads, block_size, size = kv_cache.shape[2:]
    num_tokens, num_heads, head_dim = query.shape
    num_reqs = seq_lens.shape[0]
    group = num_heads // num_kv_heads
    assert num_heads % num_kv_heads == 0, (num_heads, num_kv_heads)
    assert size == token_size(head_dim, kv_cache.dtype), (query.shape, kv_cache.shape)
    assert kv_cache.is_contiguous()
    assert block_table.stride(1) == 1
    if query.stride(2) != 1:
        query = query.contiguous()
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    fp8 = kv_cache.dtype == torch.float8_e4m3fn
    pages = kv_cache.view(torch.uint8) if fp8 else kv_cache
    scales = kv_cache.view(torch.float32) if kv_cache.dtype == torch.int8 else (None, None)
    dim_block = max(16, triton.next_power_of_2(head_dim))
    target = architecture(query.device)
    cache_bytes = kv_cache.dtype.itemsize
    constants = {
        "KV_HEADS": num_kv_heads,
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "DIM_BLOCK": dim_block,
        "BLOCK_SIZE": block_size,
        "PAGE": block_size * size,
        "SCALE": scale,
        "WINDOW": sliding_window,
        "SOFTCAP": softcap,
        "FP8": fp8,
        "UPCAST": INTERPRETED,
        "ACCUMULATOR": accumulator(query.dtype),
        **register_option(target, query.dtype, crowded=is_crowded(target, dim_block, cache_bytes)),
    }
    splits = 1
    if max_query_len == 1:
        context = min(max_seq_len, sliding_window or max_seq_len)
        bytes_of_split = num_tokens * num_heads * (head_dim + 1) * 4
        splits = choose_splits(target, num_reqs * num_kv_heads, context, bytes_of_split)
    settings = choose_settings(
        target,
        group,
        dim_block,
        cache_bytes,
        prefill=max_query_len > 1,
        wide=query.dtype.itemsize >= 4,
        converts=not fp8 and kv_cache.dtype != query.dtype,
    )
    constants |= {"ROWS": settings.rows, "TILE": settings.tile, "STAGES": settings.stages}
    if splits == 1:
        tokens = settings.rows // group
        launch(
            paged_attention_kernel,
            (num_tokens // tokens + num_reqs + 1, num_kv_heads),
            query,
            pages[0],
            pages[1],
            scales[0],
            scales[1],
            query_start_loc,
            seq_lens,
            block_table,
            sinks,
            out,
            num_reqs,
            num_tokens,
            num_reqs.bit_length(),
            query.stride(0),
            query.stride(1),
            block_table.stride(0),
            TOKENS=tokens,
            num_warps=settings.warps,
            **constants,
        )
        return out
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    partial_out = torch.empty(
        num_tokens, num_heads, splits, head_dim, dtype=wide, device=query.device
    )
    partial_lse = torch.empty(num_tokens, num_heads, splits, dtype=wide, device=query.device)
    launch(
        split_decode_kernel,
        (num_reqs, num_kv_heads, splits),
        query,
        pages[0],
        pages[1],
        scales[0],
        scales[1],
        query_start_loc,
        seq_lens,
        block_table,
        partial_out,
        partial_lse,
        splits,
        query.stride(0),
        query.stride(1),
        block_table.stride(0),
        num_warps=settings.warps,
        **constants,
    )
    launch(
        merge_splits_kernel,
        (num_tokens, num_heads),
        partial_out,
        partial_lse,
        query_start_loc,
        sinks,
        out,
        num_reqs,
        splits,
        HEADS=num_heads,
        HEAD_DIM=head_dim,
        DIM_BLOCK=dim_block,
        SPLITS_BLOCK=MAX_SPLITS,  # whatever their number, which differs from step to step
        ACCUMULATOR=accumulator(query.dtype),
        num_warps=4,
    )
    return out


def examples() -> Iterator[Example]:
    """Prefill and decode of models of the usual shapes, and each type of cache."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    fp8, int8 = torch.float8_e4m3fn, torch.int8
    capped = {"sliding_window": 1024, "softcap": 50.0}
    for name, dtype, cache_dtype, heads, kv_heads, head_dim, more in (
        ("32/8 heads of 128", bf16, bf16, 32, 8, 128, {}),
        ("32/8 heads of 128", fp16, fp16, 32, 8, 128, {}),
        ("32/8 heads of 128", bf16, fp8, 32, 8, 128, {}),
        ("32/8 heads of 128", bf16, int8, 32, 8, 128, {}),
        ("28/4 heads of 128", bf16, bf16, 28, 4, 128, {}),
        ("9/3 heads of 64", bf16, bf16, 9, 3, 64, {}),
        ("9/3 heads of 64", bf16, fp8, 9, 3, 64, {}),
        ("32/8 heads of 64", bf16, int8, 32, 8, 64, {}),
        ("8/4 heads of 256, window, soft cap", bf16, bf16, 8, 4, 256, capped),
        ("8/4 heads of 256, window, soft cap", bf16, int8, 8, 4, 256, capped),
        ("8/4 heads of 256, window, soft cap", bf16, fp8, 8, 4, 256, capped),
        ("8/4 heads of 256, window, soft cap", bf16, fp32, 8, 4, 256, capped),
        ("64/8 heads of 64, sinks", bf16, bf16, 64, 8, 64, {"sinks": fake(64, dtype=bf16)}),
        ("32/8 heads of 128", fp32, fp32, 32, 8, 128, {}),
        ("32/8 heads of 64", fp32, int8, 32, 8, 64, {}),
        ("8/4 heads of 256, window, soft cap", fp32, fp32, 8, 4, 256, capped),
    ):
        cache = fake(2, 1 << 16, kv_heads, 16, token_size(head_dim, cache_dtype), dtype=cache_dtype)
        for step, num_tokens, longest in (("prefill", 2048, 1024), ("decode", 4, 1)):
            call = partial(
                paged_attention,
                fake(num_tokens, heads + 2 * kv_heads, head_dim, dtype=dtype)[:, :heads],
                cache,
                fake(5, dtype=torch.int32),
                fake(4, dtype=torch.int32),
                fake(4, 512, dtype=torch.int32),
                max_query_len=longest,
                max_seq_len=8192,
                query_lens_cpu=[],
                seq_lens_cpu=[],
                scale=head_dim**-0.5,
                **more,
            )
            cache_name = "" if cache_dtype == dtype else f", {NAMES[cache_dtype]} cache"
            yield Example(f"{step}, {name}, {NAMES[dtype]}{cache_name}", call)
