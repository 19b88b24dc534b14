"""The mixture of experts in Triton: a grouped product of matrices over tokens sorted by expert.

The (token, choice) pairs are sorted by expert and each expert's are cut into blocks of rows: a
program multiplies a block by a tile of one expert's matrix (MegaBlocks, arXiv 2211.15841; the
fused MoE kernel of vLLM and SGLang). Blocks are found on the device from the experts' counts: the
grid is as large as they can become, and nothing waits for the host. A token's results are summed
in the order of its choices, not as they happen to finish.
"""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.architectures import Architecture
from pagelet.kernels.gpu.device import sigmoid
from pagelet.kernels.gpu.elements import NAMES, accumulator
from pagelet.kernels.gpu.launch import Example, architecture, fake, launch
from pagelet.kernels.gpu.tile import Tile, choose_by_rows
from pagelet.kernels.linear.grouped import Kind
from pagelet.kernels.linear.triton import choose_tile as quantized_tile
from pagelet.kernels.linear.triton import grouped_product, stored_form
from pagelet.kernels.moe.experts import Experts, GroupedExperts
from pagelet.kernels.precision import accumulation_dtype

_REDUCE_BLOCK = 1024


@triton.jit
def route_kernel(
    router_logits,  # [num_tokens, EXPERTS]
    probabilities,  # [num_tokens, TOP_K]
    experts,  # [num_tokens, TOP_K] int32: of the weights held here, HELD for all others
    first_expert,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    HELD: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_K_BLOCK: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, EXPERTS_BLOCK)
    choices = tl.arange(0, TOP_K_BLOCK)
    logits = tl.load(
        router_logits + token * EXPERTS + columns, mask=columns < EXPERTS, other=float("-inf")
    ).to(ACCUMULATOR)
    weights = tl.exp(logits - tl.max(logits, 0))
    weights = weights / tl.sum(weights, 0)
    picked = tl.zeros((TOP_K_BLOCK,), ACCUMULATOR)
    chosen = tl.zeros((TOP_K_BLOCK,), tl.int32)
    for choice in tl.static_range(TOP_K):
        expert = tl.minimum(tl.argmax(weights, 0), EXPERTS - 1)  # a row of NaN has no largest
        picked = tl.where(choices == choice, tl.max(weights, 0), picked)
        chosen = tl.where(choices == choice, expert, chosen)
        weights = tl.where(columns == expert, -1.0, weights)
    if RENORMALIZE:
        picked = picked / tl.sum(picked, 0)
    local = chosen - first_expert
    local = tl.where((local >= 0) & (local < HELD), local, HELD)
    at = token * TOP_K + choices
    tl.store(probabilities + at, picked, mask=choices < TOP_K)
    tl.store(experts + at, local, mask=choices < TOP_K)


@triton.jit
def _block_of_expert(
    starts,  # [EXPERTS + 1]
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Whether this program has rows; and if so, the expert, and its first row and the end of the
    expert's rows in sorted order."""
    block = tl.program_id(0)
    experts = tl.arange(0, EXPERTS_BLOCK)
    real = experts < EXPERTS
    begins = tl.load(starts + experts, mask=real, other=0)
    ends = tl.load(starts + experts + 1, mask=real, other=0)
    blocks = tl.where(real, (ends - begins + BLOCK_M - 1) // BLOCK_M, 0)
    blocks_before = tl.cumsum(blocks, 0) - blocks
    # The experts' blocks follow one another; this one is the block of the expert that holds it.
    mine = (block >= blocks_before) & (block < blocks_before + blocks)
    held = tl.sum(mine.to(tl.int32), 0)
    expert = tl.sum(tl.where(mine, experts, 0), 0).to(tl.int64)
    end = tl.sum(tl.where(mine, ends, 0), 0)
    first = tl.sum(tl.where(mine, begins + (block - blocks_before) * BLOCK_M, 0), 0)
    return held, expert, first, end


@triton.jit
def grouped_gemm_kernel(
    x,  # [num_tokens, K], or with GATED=False [num_pairs, K] in sorted order
    weight,  # [EXPERTS, N, K], or with GATED [EXPERTS, 2 * N, K], gate rows before up rows
    out,  # [num_pairs, N], in sorted order with GATED, else as the pairs were
    order,  # [num_pairs] int64: which pair is where in sorted order
    starts,  # [EXPERTS + 1] int64: where an expert's pairs begin in sorted order
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    GATED: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    held, expert, first, end = _block_of_expert(starts, EXPERTS, EXPERTS_BLOCK, BLOCK_M)
    if held == 0:
        return
    rows = first + tl.arange(0, BLOCK_M)
    inside = rows < end
    pairs = tl.load(order + rows, mask=inside, other=0)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    x_rows = pairs // TOP_K if GATED else rows
    x_at = x + x_rows[:, None] * K + inner[None, :]
    of_expert = weight + expert * (N * K * (2 if GATED else 1))
    weight_at = of_expert + columns[None, :].to(tl.int64) * K + inner[:, None]
    sums = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    ups = tl.zeros((BLOCK_M, BLOCK_N), ACCUMULATOR)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        of_k = inner < K - start
        tile = tl.load(x_at + start, mask=inside[:, None] & of_k[None, :], other=0)
        mask = of_k[:, None] & (columns < N)[None, :]
        matrix = tl.load(weight_at + start, mask=mask, other=0)
        if UPCAST:
            tile = tile.to(ACCUMULATOR)
            matrix = matrix.to(ACCUMULATOR)
        sums = tl.dot(tile, matrix, sums, input_precision="ieee", out_dtype=ACCUMULATOR)
        if GATED:
            up = tl.load(weight_at + N * K + start, mask=mask, other=0)
            if UPCAST:
                up = up.to(ACCUMULATOR)
            ups = tl.dot(tile, up, ups, input_precision="ieee", out_dtype=ACCUMULATOR)
    if GATED:
        sums = sums * sigmoid(sums) * ups
    out_rows = rows if GATED else pairs
    out_at = out + out_rows[:, None] * N + columns[None, :]
    mask = inside[:, None] & (columns < N)[None, :]
    tl.store(out_at, sums.to(out.dtype.element_ty), mask=mask)


@triton.jit
def quantized_gemm_kernel(
    x,  # as of grouped_gemm_kernel, as are out, order and starts
    values,  # [EXPERTS, OUT, ROW_BYTES], where OUT is N, or with GATED 2 * N; see GroupedExperts
    scales,  # [EXPERTS, GROUPS, OUT]
    minima,  # [EXPERTS, GROUPS, OUT], or None
    out,
    order,
    starts,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    N: tl.constexpr,
    OUT: tl.constexpr,
    K: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    UPCAST: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    held, expert, first, end = _block_of_expert(starts, EXPERTS, EXPERTS_BLOCK, BLOCK_M)
    if held == 0:
        return
    rows = first + tl.arange(0, BLOCK_M)[:, None]
    in_rows = rows < end
    pairs = tl.load(order + rows, mask=in_rows, other=0)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    in_columns = columns < N
    x_rows = pairs // TOP_K if GATED else rows
    x_at = x + x_rows * K
    values_at = values + (expert * OUT + columns) * ROW_BYTES
    scales += expert * (GROUPS * OUT)
    if minima is not None:
        minima += expert * (GROUPS * OUT)
    total = grouped_product(
        x_at,
        in_rows,
        values_at,
        in_columns,
        scales,
        minima,
        columns,
        0,
        K,
        OUT,
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
    if GATED:
        up = grouped_product(
            x_at,
            in_rows,
            values_at + N * ROW_BYTES,
            in_columns,
            scales,
            minima,
            columns + N,
            0,
            K,
            OUT,
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
        total = total * sigmoid(total) * up
    out_rows = rows if GATED else pairs
    tl.store(
        out + out_rows * N + columns, total.to(out.dtype.element_ty), mask=in_rows & in_columns
    )


@triton.jit
def combine_kernel(
    results,  # [num_tokens, TOP_K, SIZE]; those of experts that are not held are not there
    probabilities,  # [num_tokens, TOP_K]
    experts,  # [num_tokens, TOP_K]
    out,  # [num_tokens, SIZE]
    HELD: tl.constexpr,
    TOP_K: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    total = tl.zeros((BLOCK,), ACCUMULATOR)
    for choice in tl.static_range(TOP_K):
        pair = token * TOP_K + choice
        held = tl.load(experts + pair) < HELD
        result = tl.load(results + pair * SIZE + columns, mask=inside & held, other=0)
        total += result.to(ACCUMULATOR) * tl.load(probabilities + pair)
    tl.store(out + token * SIZE + columns, total.to(out.dtype.element_ty), mask=inside)


def moe(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    gate_up: Experts,
    down: Experts,
    top_k: int,
    renormalize: bool,
    first_expert: int = 0,
) -> torch.Tensor:
    """As `reference.moe`; reads the weights of the chosen experts only."""
    num_tokens, hidden = x.shape
    held, _, width = down.shape
    device, wide = x.device, accumulation_dtype(x.dtype)
    probabilities = torch.empty(num_tokens, top_k, dtype=wide, device=device)
    experts = torch.empty(num_tokens, top_k, dtype=torch.int32, device=device)
    num_experts = router_logits.shape[1]
    launch(
        route_kernel,
        (num_tokens,),
        router_logits.contiguous(),
        probabilities,
        experts,
        first_expert,
        EXPERTS=num_experts,
        EXPERTS_BLOCK=triton.next_power_of_2(num_experts),
        HELD=held,
        TOP_K=top_k,
        TOP_K_BLOCK=triton.next_power_of_2(top_k),
        RENORMALIZE=renormalize,
        ACCUMULATOR=accumulator(x.dtype),
        num_warps=1 if num_experts <= 64 else 4,
    )
    of_pairs, order = torch.sort(experts.flatten(), stable=True)
    bounds = torch.arange(held + 1, dtype=torch.int32, device=device)
    starts = torch.searchsorted(of_pairs, bounds)
    rows_of_expert = num_tokens * top_k / num_experts
    gated = torch.empty(num_tokens * top_k, width, dtype=x.dtype, device=device)
    results = torch.empty(num_tokens * top_k, hidden, dtype=x.dtype, device=device)
    for source, weight, target in ((x.contiguous(), gate_up, gated), (gated, down, results)):
        _multiply(source, weight, target, order, starts, rows_of_expert, top_k)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    block = min(_REDUCE_BLOCK, triton.next_power_of_2(hidden))
    launch(
        combine_kernel,
        (num_tokens, triton.cdiv(hidden, block)),
        results,
        probabilities,
        experts,
        out,
        HELD=held,
        TOP_K=top_k,
        SIZE=hidden,
        BLOCK=block,
        ACCUMULATOR=accumulator(x.dtype),
        num_warps=4,
    )
    return out


def _multiply(
    x: torch.Tensor,
    weight: Experts,
    out: torch.Tensor,
    order: torch.Tensor,
    starts: torch.Tensor,
    rows_of_expert: float,
    top_k: int,
) -> None:
    """Each pair's product with its expert's matrix, if that is held; of a matrix with twice as many
    outputs, gated."""
    num_experts, out_size, in_size = weight.shape
    num_pairs, size = out.shape
    target, itemsize = architecture(x.device), x.dtype.itemsize
    kernel: object = grouped_gemm_kernel
    tensors: tuple[torch.Tensor | None, ...]
    form: dict[str, object] = {}
    if isinstance(weight, GroupedExperts):
        # Eight waves of AMD's have too few registers for int4 and the experts' addresses.
        rows = rows_of_expert if target.is_nvidia else min(rows_of_expert, 64.0)
        tile = quantized_tile(target, rows, weight, itemsize)
        kernel = quantized_gemm_kernel
        tensors, form = stored_form(weight)
        form |= {"OUT": out_size, "GROUPS": weight.scales.shape[1]}
    else:
        tile = choose_tile(target, rows_of_expert, itemsize)
        assert weight.is_contiguous()
        tensors = (weight,)
    # Each expert's last block may be nearly empty, but no block is without a pair.
    most_blocks = min(num_pairs, num_pairs // tile.rows + num_experts)
    launch(
        kernel,
        (most_blocks, triton.cdiv(size, tile.columns)),
        x,
        *tensors,
        out,
        order,
        starts,
        EXPERTS=num_experts,
        EXPERTS_BLOCK=triton.next_power_of_2(num_experts),
        TOP_K=top_k,
        N=size,
        K=in_size,
        GATED=out_size != size,
        **form,
        **tile.constants(target, x.dtype),
    )


# By the rows of an expert; `columns` twice, of gate and of up. Few rows read weights as fast as
# memory gives them, many reuse them.
_TILES = (
    (16.0, Tile(16, 64, 64, 4, 4)),
    (64.0, Tile(64, 64, 64, 4, 3)),
    (float("inf"), Tile(128, 64, 32, 8, 4)),
)


def choose_tile(target: Architecture, rows_of_expert: float, itemsize: int) -> Tile:
    """With as many stages as fit into the architecture's shared memory."""
    tile = choose_by_rows(target, _TILES, rows_of_expert, itemsize)
    stage = (tile.rows + 2 * tile.columns) * tile.inner * itemsize
    return tile.fitted(target, stage)


def examples() -> Iterator[Example]:
    """Qwen3-30B-A3B's experts, for a batch of decodes and for prompts."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32

    def quantized(kind: Kind, group: int, out_size: int, in_size: int) -> Experts:
        size = in_size if group == 0 else group
        stored = {"int4": torch.uint8, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[kind]
        values = fake(128, out_size, in_size // 2 if kind == "int4" else in_size, dtype=stored)
        scales = fake(128, in_size // size, out_size, dtype=torch.float32)
        minima = scales if kind == "int4" else None
        return GroupedExperts(kind, values, scales, minima, size, in_size)

    forms: tuple[tuple[int, torch.dtype, Kind | None, int], ...] = (
        (32, bf16, None, 0),
        (512, bf16, None, 0),
        (4096, bf16, None, 0),
        (32, fp16, None, 0),
        (32, bf16, "int4", 128),
        (4096, bf16, "int4", 128),
        (32, bf16, "int8", 32),
        (4096, bf16, "int8", 32),
        (32, bf16, "fp8", 128),
        (4096, bf16, "fp8", 128),
        (32, bf16, "fp8", 0),
        (4096, bf16, "fp8", 0),
        (4096, fp32, None, 0),
        (4096, fp32, "int4", 128),
    )
    for tokens, dtype, kind, group in forms:
        x, router = fake(tokens, 2048, dtype=dtype), fake(tokens, 128, dtype=dtype)
        gate_up: Experts
        down: Experts
        if kind is None:
            gate_up, down = fake(128, 1536, 2048, dtype=dtype), fake(128, 2048, 768, dtype=dtype)
            of = NAMES[dtype]
        else:
            gate_up, down = quantized(kind, group, 1536, 2048), quantized(kind, group, 2048, 768)
            of = f"{kind}, " + (f"groups of {group}" if group else "one group")
            of += "" if dtype == bf16 else f", {NAMES[dtype]}"
        yield Example(
            f"8 of 128 experts, {tokens} tokens, {of}",
            partial(moe, x, router, gate_up, down, 8, True),
        )
