"""Adapters in Triton: all those of a step on one layer in two launches (the segmented products of
Punica, arXiv 2310.18547, and S-LoRA, arXiv 2311.03285).

Rows lie sorted by adapter, in blocks of one adapter each. The first kernel multiplies a block's
rows by the first matrix, of whose inputs each program has a part, as there are few outputs to
divide; the second one sums these parts in their order and multiplies by the second matrix. Which
matrices, of which rank, a program learns on the device: the grid depends on shapes and on a bound
of the number of blocks only, which a CUDA graph needs.
"""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.elements import NAMES, accumulator
from pagelet.kernels.gpu.launch import INTERPRETED, Example, architecture, fake, launch
from pagelet.kernels.gpu.tile import register_option
from pagelet.kernels.lora.adapters import BLOCK_ROWS, WIDE_ROWS, AdapterRows, AdapterTable
from pagelet.kernels.precision import accumulation_dtype

_INNER, _COLUMNS = 64, 64
_MOST_RANKS = 64
"""Of a tile."""
_SPLIT_INPUTS = 512
"""At least, of one program of the first kernel."""
_MOST_SPLITS = {True: 16, False: 2}
"""By whether the step has few rows."""


@triton.jit
def shrink_kernel(
    x,  # [num_tokens, K], the last dimension contiguous
    partial_sums,  # [splits, num_places, PARTS, RANKS]
    matrices,  # [slots, PARTS, 3]: addresses of both, and the rank
    num_blocks,  # [1]
    blocks,  # [num_blocks, 3]: slot, first place, number of places
    row_ids,  # [places]
    split_stride,
    x_stride,
    K: tl.constexpr,
    SPLIT: tl.constexpr,  # inputs of a split, a multiple of BLOCK_K
    PARTS: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    block = tl.program_id(0)
    if block >= tl.load(num_blocks):
        return
    part = tl.program_id(1) % PARTS
    first_rank = tl.program_id(1) // PARTS * BLOCK_R
    split = tl.program_id(2)
    slot = tl.load(blocks + block * 3).to(tl.int64)
    entry = matrices + (slot * PARTS + part) * 3
    rank = tl.multiple_of(tl.load(entry + 2).to(tl.int32), 16)
    if first_rank >= rank:
        return
    first = tl.load(blocks + block * 3 + 1)
    count = tl.load(blocks + block * 3 + 2)
    a = tl.multiple_of(tl.load(entry).to(tl.pointer_type(x.dtype.element_ty)), 16)
    place = tl.arange(0, BLOCK_M)
    in_rows = place < count
    rows = tl.load(row_ids + first + place, mask=in_rows, other=0)
    ranks = first_rank + tl.arange(0, BLOCK_R)
    inner = tl.arange(0, BLOCK_K)
    begin = split * SPLIT
    x_at = x + rows[:, None] * x_stride + inner[None, :]
    a_at = a + ranks[None, :] * K + inner[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_R), ACCUMULATOR)
    for start in tl.range(begin, tl.minimum(begin + SPLIT, K), BLOCK_K):
        of_k = inner < K - start
        tile = tl.load(x_at + start, mask=in_rows[:, None] & of_k[None, :], other=0)
        matrix = tl.load(a_at + start, mask=of_k[:, None] & (ranks < rank)[None, :], other=0)
        if UPCAST:
            tile = tile.to(ACCUMULATOR)
            matrix = matrix.to(ACCUMULATOR)
        total = tl.dot(tile, matrix, total, input_precision="ieee", out_dtype=ACCUMULATOR)
    places = (first + place).to(tl.int64)
    at = split.to(tl.int64) * split_stride + (places * PARTS + part)[:, None] * RANKS
    tl.store(partial_sums + at + ranks[None, :], total, mask=in_rows[:, None])


@triton.jit
def expand_kernel(
    out,  # [num_tokens, sum of the parts], the last dimension contiguous
    partial_sums,  # [SPLITS, num_places, PARTS, RANKS]
    matrices,
    part_sizes,  # [PARTS]
    num_blocks,
    blocks,
    row_ids,
    split_stride,
    out_stride,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    block = tl.program_id(0)
    if block >= tl.load(num_blocks):
        return
    part = tl.program_id(2)
    size = tl.load(part_sizes + part)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    slot = tl.load(blocks + block * 3).to(tl.int64)
    entry = matrices + (slot * PARTS + part) * 3
    rank = tl.multiple_of(tl.load(entry + 2).to(tl.int32), 16)
    if (rank == 0) | (tl.program_id(1) * BLOCK_N >= size):
        return
    first = tl.load(blocks + block * 3 + 1)
    count = tl.load(blocks + block * 3 + 2)
    b = tl.multiple_of(tl.load(entry + 1).to(tl.pointer_type(out.dtype.element_ty)), 16)
    begin = 0  # of the part's columns
    for before in tl.static_range(PARTS):
        begin += tl.where(before < part, tl.load(part_sizes + before), 0)
    place = tl.arange(0, BLOCK_M)
    in_rows = place < count
    in_columns = columns < size
    rows = tl.load(row_ids + first + place, mask=in_rows, other=0)
    places = (first + place).to(tl.int64)
    of_row = partial_sums + (places * PARTS + part)[:, None] * RANKS
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for first_rank in tl.range(0, rank, BLOCK_R, num_stages=1):
        ranks = first_rank + tl.arange(0, BLOCK_R)
        # What is beyond the rank was written with zeros, up to its tile's end.
        small = tl.zeros((BLOCK_M, BLOCK_R), ACCUMULATOR)
        at = of_row + ranks[None, :]
        for _ in tl.range(SPLITS, num_stages=1):
            small += tl.load(at, mask=in_rows[:, None], other=0)
            at += split_stride
        matrix = tl.load(
            b + columns[None, :].to(tl.int64) * rank + ranks[:, None],
            mask=in_columns[None, :] & (ranks < rank)[:, None],
            other=0,
        )
        if UPCAST:
            matrix = matrix.to(ACCUMULATOR)
        else:
            small = small.to(matrix.dtype)
        total = tl.dot(small, matrix, total, input_precision="ieee", out_dtype=ACCUMULATOR)
    at = out + rows[:, None] * out_stride + (begin + columns)[None, :]
    mask = in_rows[:, None] & in_columns[None, :]
    total += tl.load(at, mask=mask, other=0).to(ACCUMULATOR)
    tl.store(at, total.to(out.dtype.element_ty), mask=mask)


def add_adapters(
    out: torch.Tensor, x: torch.Tensor, table: AdapterTable, rows: AdapterRows
) -> None:
    """As `reference.add_adapters`, with the adapters that are in the table, and on the rows that
    are set, when the kernels run; their blocks may be fewer than those that are launched."""
    num_tokens, in_size = x.shape
    parts = len(table.sizes)
    assert out.dtype == x.dtype
    assert out.shape == (num_tokens, sum(table.sizes))
    assert out.stride(1) == 1
    if x.stride(1) != 1:
        x = x.contiguous()
    tile_ranks = max(16, min(_MOST_RANKS, triton.next_power_of_2(table.max_rank)))
    rank_tiles = triton.cdiv(table.max_rank, tile_ranks)
    # By the kind of block alone, so that no step compiles anew.
    most = _MOST_SPLITS[rows.block_rows == BLOCK_ROWS]
    target = architecture(x.device)
    inner = 32 if x.dtype.itemsize >= 4 and target.is_nvidia else _INNER  # see FLOAT32_TILES
    inputs = max(_SPLIT_INPUTS, triton.cdiv(triton.cdiv(in_size, most), inner) * inner)
    splits = triton.cdiv(in_size, inputs)
    partial_sums = torch.empty(
        splits,
        num_tokens,
        parts,
        rank_tiles * tile_ranks,
        dtype=accumulation_dtype(x.dtype),
        device=x.device,
    )
    constants = {
        "PARTS": parts,
        "RANKS": rank_tiles * tile_ranks,
        "BLOCK_M": rows.block_rows,
        "BLOCK_R": tile_ranks,
        "UPCAST": INTERPRETED,
        "ACCUMULATOR": accumulator(x.dtype),
        "num_warps": 4,
    }
    launch(
        shrink_kernel,
        (rows.launched_blocks, parts * rank_tiles, splits),
        x,
        partial_sums,
        table.matrices,
        rows.num_blocks,
        rows.blocks,
        rows.row_ids,
        partial_sums.stride(0),
        x.stride(0),
        K=in_size,
        SPLIT=inputs,
        BLOCK_K=inner,
        **constants,
    )
    launch(
        expand_kernel,
        (rows.launched_blocks, triton.cdiv(max(table.sizes), _COLUMNS), parts),
        out,
        partial_sums,
        table.matrices,
        table.part_sizes,
        rows.num_blocks,
        rows.blocks,
        rows.row_ids,
        partial_sums.stride(0),
        out.stride(0),
        SPLITS=splits,
        BLOCK_N=_COLUMNS,
        **constants,
        **register_option(target, x.dtype),
    )


def examples() -> Iterator[Example]:
    """Adapters of a layer's query, key and value projections, for decodes and for prompts."""
    device = torch.device("meta")
    for dtype, tokens, max_rank in (
        (torch.bfloat16, 16, 16),
        (torch.bfloat16, 1024, 16),
        (torch.bfloat16, 16, 128),
        (torch.bfloat16, 1024, 128),
        (torch.float16, 16, 64),
        (torch.float32, 1024, 64),
    ):
        table = AdapterTable(8, [4096, 1024, 1024], max_rank, device)
        rows = AdapterRows(2048, device)
        rows.block_rows = BLOCK_ROWS if tokens == 16 else WIDE_ROWS
        call = partial(
            add_adapters,
            fake(tokens, 6144, dtype=dtype),
            fake(tokens, 4096, dtype=dtype),
            table,
            rows,
        )
        yield Example(f"ranks to {max_rank}, {tokens} tokens, {NAMES[dtype]}", call)
