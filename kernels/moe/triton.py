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
from pagelet.kernels.gpu.launch import INTERPRETED, Example, architecture, fake, launch
from pagelet.kernels.gpu.tile import Tile
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
    if held == 0:
        return
    expert = tl.sum(tl.where(mine, experts, 0), 0).to(tl.int64)
    end = tl.sum(tl.where(mine, ends, 0), 0)
    first = tl.sum(tl.where(mine, begins + (block - blocks_before) * BLOCK_M, 0), 0)

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
    gate_up: torch.Tensor,
    down: torch.Tensor,
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
    tile = choose_tile(architecture(device), num_tokens * top_k / num_experts, x.dtype.itemsize)
    num_pairs = num_tokens * top_k
    # Each expert's last block may be nearly empty, but no block is without a pair.
    most_blocks = min(num_pairs, num_pairs // tile.rows + held)
    gated = torch.empty(num_pairs, width, dtype=x.dtype, device=device)
    results = torch.empty(num_pairs, hidden, dtype=x.dtype, device=device)
    for source, weight, target, is_gated in (
        (x.contiguous(), gate_up, gated, True),
        (gated, down, results, False),
    ):
        size = target.shape[1]
        launch(
            grouped_gemm_kernel,
            (most_blocks, triton.cdiv(size, tile.columns)),
            source,
            weight.contiguous(),
            target,
            order,
            starts,
            EXPERTS=held,
            EXPERTS_BLOCK=triton.next_power_of_2(held),
            TOP_K=top_k,
            N=size,
            K=source.shape[1],
            BLOCK_M=tile.rows,
            BLOCK_N=tile.columns,
            BLOCK_K=tile.inner,
            STAGES=tile.stages,
            GATED=is_gated,
            UPCAST=INTERPRETED,
            ACCUMULATOR=accumulator(x.dtype),
            num_warps=tile.warps,
        )
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


# By the rows of an expert; `columns` twice, of gate and of up. Few rows read weights as fast as
# memory gives them, many reuse them.
_TILES = (
    (16.0, Tile(16, 64, 64, 4, 4)),
    (64.0, Tile(64, 64, 64, 4, 3)),
    (float("inf"), Tile(128, 64, 32, 8, 4)),
)


def choose_tile(target: Architecture, rows_of_expert: float, itemsize: int) -> Tile:
    """With as many stages as fit into the architecture's shared memory."""
    tile = next(tile for most, tile in _TILES if rows_of_expert <= most)
    stage = (tile.rows + 2 * tile.columns) * tile.inner * itemsize
    return tile.fitted(target, stage)


def examples() -> Iterator[Example]:
    """Qwen3-30B-A3B's experts, for a batch of decodes and for prompts."""
    for tokens, dtype in (
        (32, torch.bfloat16),
        (512, torch.bfloat16),
        (4096, torch.bfloat16),
        (32, torch.float16),
    ):
        x, router = fake(tokens, 2048, dtype=dtype), fake(tokens, 128, dtype=dtype)
        gate_up, down = fake(128, 1536, 2048, dtype=dtype), fake(128, 2048, 768, dtype=dtype)
        yield Example(
            f"8 of 128 experts, {tokens} tokens, {NAMES[dtype]}",
            partial(moe, x, router, gate_up, down, 8, True),
        )
