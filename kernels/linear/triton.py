"""Products with weights of 4 and 8 bits in Triton.

Values are widened in registers to the activations' type, which holds all of them exactly, and
multiplied by matrix units; the float32 result of each group of inputs is then scaled, and the
group's minimum times the sum of its activations is added (the order of Marlin, arXiv 2408.11743,
and of DeepSeek-V3's FP8 products, arXiv 2412.19437, which promote each block's sum so). No weight
is rounded again, and activations are not rounded at all.
"""

import dataclasses
from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu import invariance
from pagelet.kernels.gpu.architectures import Architecture
from pagelet.kernels.gpu.device import e4m3_to_float
from pagelet.kernels.gpu.elements import NAMES
from pagelet.kernels.gpu.launch import Example, architecture, fake, launch
from pagelet.kernels.gpu.tile import Tile, choose_by_rows
from pagelet.kernels.linear.grouped import BLOCK, GroupedForm, GroupedWeight
from pagelet.kernels.precision import accumulation_dtype


@triton.jit
def grouped_product(
    x_at,  # [BLOCK_M, 1] where the rows of activations begin
    in_rows,  # [BLOCK_M, 1]
    values_at,  # [1, BLOCK_N] where the columns' values begin
    in_columns,  # [1, BLOCK_N]
    scales,  # [groups, SCALE_STRIDE]
    minima,  # [groups, SCALE_STRIDE], or None
    columns,  # [1, BLOCK_N] of the scales
    begin,  # of the inputs, a multiple of BLOCK_K
    end,
    SCALE_STRIDE: tl.constexpr,
    K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    GROUP: tl.constexpr,  # inputs that share a scale
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # divides GROUP, or there is one group; of int4 a multiple of 64
    STAGES: tl.constexpr,
    KIND: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    """Rows of activations times columns of a weight as `GroupedWeight` holds it, over the inputs
    [begin, end): [BLOCK_M, BLOCK_N]."""
    # Of int4 one load of bytes has the inputs of two products.
    PARTS: tl.constexpr = 2 if KIND == "int4" else 1
    INNER: tl.constexpr = BLOCK_K // PARTS
    inner = tl.arange(0, INNER)
    x_at = x_at + inner[None, :]
    values_at = values_at + inner[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    sums = tl.zeros((BLOCK_M, 1), ACCUMULATOR)  # of a row's activations, if one group has them all
    DTYPE: tl.constexpr = ACCUMULATOR if UPCAST else x_at.dtype.element_ty
    ONE_GROUP: tl.constexpr = GROUP >= K
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        loaded = tl.load(
            values_at + start // PARTS,
            mask=in_columns & (inner < ROW_BYTES - start // PARTS)[:, None],
            other=0,
        )
        for part in tl.static_range(PARTS):
            first = start + part * INNER
            tile = tl.load(x_at + first, mask=in_rows & (inner < K - first)[None, :], other=0)
            tile = tile.to(DTYPE)
            if KIND == "fp8":
                wide = e4m3_to_float(loaded)
            elif KIND == "int4":
                wide = (loaded & 15) if part == 0 else (loaded >> 4)
            else:
                wide = loaded
            wide = wide.to(tl.float32).to(DTYPE)
            if ONE_GROUP:
                total = tl.dot(tile, wide, total, input_precision="ieee", out_dtype=ACCUMULATOR)
                if minima is not None:
                    sums += tl.sum(tile.to(ACCUMULATOR), 1, keep_dims=True)
            else:
                product = tl.dot(tile, wide, input_precision="ieee", out_dtype=ACCUMULATOR)
                at = first // GROUP * SCALE_STRIDE + columns
                # A padded half block at the end of int4 has no group.
                scaled = in_columns & (first < K)
                total += product * tl.load(scales + at, mask=scaled, other=0)
                if minima is not None:
                    minimum = tl.load(minima + at, mask=scaled, other=0)
                    total += tl.sum(tile.to(ACCUMULATOR), 1, keep_dims=True) * minimum
    if ONE_GROUP:
        total *= tl.load(scales + columns, mask=in_columns, other=0)
        if minima is not None:
            total += sums * tl.load(minima + columns, mask=in_columns, other=0)
    return total


@triton.jit(do_not_specialize=["num_tokens"])
def grouped_linear_kernel(
    x,  # [num_tokens, K], the last dimension contiguous
    values,  # [N, K] int8 or bytes of e4m3; or [N, ROW_BYTES], see GroupedWeight
    scales,  # [groups, N]
    minima,  # [groups, N], or None
    bias,  # [N], or None
    out,  # [splits, num_tokens, N], of which each split writes its own
    num_tokens,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    SPLIT: tl.constexpr,  # inputs of a split, a multiple of BLOCK_K; K if there is one
    ROW_BYTES: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    KIND: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    in_columns = columns < N
    in_rows = rows < num_tokens
    begin = 0
    end = K
    if SPLIT < K:
        begin = tl.program_id(2) * SPLIT
        end = tl.minimum(begin + SPLIT, K)
        out += tl.program_id(2).to(tl.int64) * num_tokens * N
    total = grouped_product(
        x + rows.to(tl.int64) * x_stride,
        in_rows,
        values + columns.to(tl.int64) * ROW_BYTES,
        in_columns,
        scales,
        minima,
        columns,
        begin,
        end,
        N,
        K,
        ROW_BYTES,
        GROUP,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        STAGES,
        KIND,
        UPCAST,
        ACCUMULATOR,
    )
    if bias is not None:
        total += tl.load(bias + columns, mask=in_columns, other=0).to(ACCUMULATOR)
    out_at = out + rows.to(tl.int64) * N + columns
    tl.store(out_at, total.to(out.dtype.element_ty), mask=in_rows & in_columns)


@triton.jit(do_not_specialize=["num_tokens"])
def sum_splits_kernel(
    partial,  # [SPLITS, num_tokens, N]
    bias,  # [N], or None
    out,  # [num_tokens, N]
    num_tokens,
    N: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Adds up what the splits have found, in their order."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    at = partial + row * N + columns
    total = tl.load(at, mask=inside, other=0)
    for _ in tl.static_range(1, SPLITS):
        at += tl.cast(num_tokens, tl.int64) * N
        total += tl.load(at, mask=inside, other=0)
    if bias is not None:
        total += tl.load(bias + columns, mask=inside, other=0).to(total.dtype)
    tl.store(out + row * N + columns, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["num_tokens"])
def linear_kernel(
    x,  # [num_tokens, K], the last dimension contiguous
    weight,  # [N, K] contiguous
    bias,  # [N], or None
    out,  # [num_tokens, N]
    num_tokens,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    inner = tl.arange(0, BLOCK_K)
    in_columns = columns < N
    in_rows = rows < num_tokens
    x_at = x + rows.to(tl.int64) * x_stride + inner[None, :]
    weight_at = weight + columns.to(tl.int64) * K + inner[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        of_k = inner < K - start
        tile = tl.load(x_at + start, mask=in_rows & of_k[None, :], other=0)
        matrix = tl.load(weight_at + start, mask=of_k[:, None] & in_columns, other=0)
        if UPCAST:
            tile = tile.to(ACCUMULATOR)
            matrix = matrix.to(ACCUMULATOR)
        total = tl.dot(tile, matrix, total, input_precision="ieee", out_dtype=ACCUMULATOR)
    if bias is not None:
        total += tl.load(bias + columns, mask=in_columns, other=0).to(ACCUMULATOR)
    out_at = out + rows.to(tl.int64) * N + columns
    tl.store(out_at, total.to(out.dtype.element_ty), mask=in_rows & in_columns)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `reference.linear`, with the same bits for a row whatever the others and their number."""
    num_tokens, in_size = x.shape
    out_size = weight.shape[0]
    if x.stride(1) != 1:
        x = x.contiguous()
    assert weight.is_contiguous()
    out = torch.empty(num_tokens, out_size, dtype=x.dtype, device=x.device)
    target, itemsize = architecture(x.device), x.dtype.itemsize
    tile = choose_by_rows(target, _DENSE_TILES, float("inf"), itemsize)
    tile = tile.fitted(target, (tile.rows + tile.columns) * tile.inner * itemsize)
    launch(
        linear_kernel,
        (triton.cdiv(out_size, tile.columns), triton.cdiv(num_tokens, tile.rows)),
        x,
        weight,
        bias,
        out,
        num_tokens,
        x.stride(0),
        N=out_size,
        K=in_size,
        **tile.constants(target, x.dtype),
    )
    return out


def grouped_linear(
    x: torch.Tensor, weight: GroupedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """As `reference.grouped_linear`."""
    num_tokens = x.shape[0]
    out_size, in_size = weight.shape
    assert x.shape[1] == in_size, (x.shape, weight.shape)
    x = weight.arrange(x)
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty(num_tokens, out_size, dtype=x.dtype, device=x.device)
    tensors, form = stored_form(weight)
    target = architecture(x.device)
    tile = choose_tile(target, num_tokens, weight, x.dtype.itemsize)
    split = choose_split(target, num_tokens, weight, tile)
    splits = triton.cdiv(in_size, split)
    sums = out
    if splits > 1:
        wide = accumulation_dtype(x.dtype)
        sums = torch.empty(splits, num_tokens, out_size, dtype=wide, device=x.device)
    launch(
        grouped_linear_kernel,
        (triton.cdiv(out_size, tile.columns), triton.cdiv(num_tokens, tile.rows), splits),
        x,
        *tensors,
        bias if splits == 1 else None,
        sums,
        num_tokens,
        x.stride(0),
        N=out_size,
        K=in_size,
        SPLIT=split,
        **form,
        **tile.constants(target, x.dtype),
    )
    if splits > 1:
        block = min(_SUM_BLOCK, triton.next_power_of_2(out_size))
        launch(
            sum_splits_kernel,
            (num_tokens, triton.cdiv(out_size, block)),
            sums,
            bias,
            out,
            num_tokens,
            N=out_size,
            SPLITS=splits,
            BLOCK=block,
            num_warps=4,
        )
    return out


def stored_form(
    weight: GroupedForm,
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], dict[str, object]]:
    """What kernels get of a quantised weight: values (FP8 as bytes), scales and minima, and how
    they lie."""
    values, scales, minima = weight.values, weight.scales, weight.minima
    assert values.is_contiguous()
    assert scales.is_contiguous()
    assert minima is None or minima.is_contiguous()
    form: dict[str, object] = {
        "ROW_BYTES": values.shape[-1],
        "GROUP": weight.group_size,
        "KIND": weight.kind,
    }
    stored = values.view(torch.uint8) if weight.kind == "fp8" else values
    return (stored, scales, minima), form


_DENSE_TILES = ((float("inf"), Tile(64, 64, 64, 4, 3)),)
"""For every number of tokens."""
# By the number of tokens: a decode of few rows has as many programs as it can to read the weights.
_TILES: tuple[tuple[float, Tile], ...] = (
    (16, Tile(16, 32, 128, 4, 4)),
    (64, Tile(64, 64, 64, 4, 3)),
    (float("inf"), Tile(128, 64, 64, 8, 3)),
)


def choose_tile(target: Architecture, num_rows: float, weight: GroupedForm, itemsize: int) -> Tile:
    """For so many rows of activations of `itemsize` bytes, with the inner dimension that the groups
    allow, and as many stages as fit into the architecture's shared memory."""
    if weight.kind == "int8" and weight.minima is not None:
        num_rows = min(num_rows, _TILES[1][0])  # the widest tile's registers don't suffice
    tile = choose_by_rows(target, _TILES, num_rows, itemsize)
    inner = tile.inner
    if weight.kind == "int4":
        inner = BLOCK  # as its values are packed
    elif weight.group_size < weight.in_size:
        while weight.group_size % inner:
            inner //= 2
    stage = tile.rows * inner * itemsize + tile.columns * inner * (1 + itemsize)
    return dataclasses.replace(tile, inner=inner).fitted(target, stage)


_SUM_BLOCK = 512
_MOST_SPLITS = 16
_PROGRAMS_OF_A_PROCESSOR = 2
"""That keep enough of the weights on their way to it to wait for memory alone."""


def choose_split(target: Architecture, num_rows: int, weight: GroupedWeight, tile: Tile) -> int:
    """The inputs that one program sums, a multiple of the tile's; all of them if there is one
    split. Where one tile has all rows, as in a decode, there are as many splits as fill the GPU
    twice over, each with enough tiles to have all stages on their way. It depends on the number of
    rows by the tile alone, so that no step compiles anew; where bits must not depend on it at all,
    there is one."""
    if invariance.BATCH_INVARIANT or num_rows > tile.rows:
        return weight.in_size
    tiles = triton.cdiv(weight.in_size, tile.inner)
    programs = triton.cdiv(weight.shape[0], tile.columns)
    wanted = min(
        triton.cdiv(_PROGRAMS_OF_A_PROCESSOR * target.processors, programs),
        tiles // tile.stages,
        _MOST_SPLITS,
    )
    return weight.in_size if wanted < 2 else triton.cdiv(tiles, wanted) * tile.inner


def examples() -> Iterator[Example]:
    """A layer of 4096 to 14336 in each form, for a decode and for a prompt."""
    out_size, in_size, bf16, fp32 = 14336, 4096, torch.bfloat16, torch.float32
    for dtype in (bf16, fp32):
        dense = fake(64, in_size, dtype=dtype), fake(out_size, in_size, dtype=dtype)
        yield Example(f"dense, {NAMES[dtype]}", partial(linear, *dense))

    def weight(kind: str, group: int, minima: bool, out_size: int = out_size) -> GroupedWeight:
        stored = {"int4": torch.uint8, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[kind]
        values = fake(out_size, in_size // 2 if kind == "int4" else in_size, dtype=stored)
        scales = fake(in_size // group, out_size, dtype=torch.float32)
        lowest = scales if minima else None
        return GroupedWeight(kind, values, scales, lowest, group, in_size)  # type: ignore[arg-type]

    few = weight("int4", 128, True, out_size=in_size)
    yield Example(
        f"int4, {in_size} outputs, 16 tokens, {NAMES[bf16]}",
        partial(grouped_linear, fake(16, in_size, dtype=bf16), few),
    )

    for kind, group, minima, dtype in (
        ("int4", 128, True, bf16),
        ("int4", 32, True, bf16),
        ("int8", 16, False, bf16),
        ("int8", 32, True, bf16),
        ("int8", in_size, False, bf16),
        ("fp8", 128, False, bf16),
        ("fp8", in_size, False, bf16),
        ("int4", 128, True, fp32),
        ("int8", in_size, False, fp32),
    ):
        for tokens in (16, 512):
            groups = "one group" if group == in_size else f"groups of {group}"
            if minima and kind != "int4":
                groups += ", minima"
            x = fake(tokens, in_size, dtype=dtype)
            yield Example(
                f"{kind}, {groups}, {tokens} tokens, {NAMES[dtype]}",
                partial(grouped_linear, x, weight(kind, group, minima)),
            )
