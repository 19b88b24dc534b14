"""Embedding lookup in Triton, over a shard of the vocabulary in one pass."""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.elements import NAMES
from pagelet.kernels.gpu.launch import Example, fake, launch

_BLOCK = 1024


@triton.jit(do_not_specialize=["first_id"])
def embedding_kernel(
    token_ids,  # [num_tokens]
    weight,  # [ROWS, SIZE]
    out,  # [num_tokens, SIZE]
    first_id,  # of the table's first row
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    row = tl.load(token_ids + token).to(tl.int64) - first_id
    held = (row >= 0) & (row < ROWS)
    values = tl.load(weight + row * SIZE + columns, mask=inside & held, other=0)
    tl.store(out + token * SIZE + columns, values, mask=inside)


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first_id: int = 0) -> torch.Tensor:
    """As `reference.embedding`."""
    rows, size = weight.shape
    out = torch.empty(token_ids.shape[0], size, dtype=weight.dtype, device=weight.device)
    block = min(_BLOCK, triton.next_power_of_2(size))
    launch(
        embedding_kernel,
        (token_ids.shape[0], triton.cdiv(size, block)),
        token_ids.contiguous(),
        weight.contiguous(),
        out,
        first_id,
        ROWS=rows,
        SIZE=size,
        BLOCK=block,
        num_warps=4,
    )
    return out


def examples() -> Iterator[Example]:
    """A quarter of a vocabulary."""
    token_ids = fake(64, dtype=torch.int64)
    for dtype in (torch.bfloat16, torch.float16):
        table = fake(32064, 4096, dtype=dtype)
        yield Example(f"rows of 4096, {NAMES[dtype]}", partial(embedding, token_ids, table, 32064))
