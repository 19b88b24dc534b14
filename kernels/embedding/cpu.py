"""Embedding lookup in C++."""

import torch

from pagelet.kernels.cpu.args import EmbeddingArgs, OpKind
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride


def record_embedding(
    program: Program,
    token_ids: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    *,
    first_id: int = 0,
    scale: float = 1.0,
    rows: int = 0,
) -> None:
    """Appends out = table[token_ids - first_id] * scale, zeros for ids that the table lacks.

    token_ids: [max_rows] int64; table: [table_rows, size]; out: [max_rows, size] of its dtype.
    """
    assert token_ids.dtype == torch.int64
    assert token_ids.is_contiguous()
    assert table.is_contiguous()
    assert (table.dtype, table.shape[1]) == (out.dtype, out.shape[1])
    args = EmbeddingArgs(
        rows=rows,
        ids=pointer(token_ids),
        table=pointer(table),
        out=pointer(out),
        table_rows=table.shape[0],
        first_id=first_id,
        out_stride=row_stride(out, name="out"),
        dtype=dtype_code(out, name="table"),
        size=table.shape[1],
        scale=scale,
    )
    program.append(OpKind.EMBEDDING, args, (token_ids, table, out))


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first_id: int = 0) -> torch.Tensor:
    """As `reference.embedding`, for float32 and bfloat16 tables."""
    out = weight.new_empty(token_ids.shape[0], weight.shape[1])
    program = Program()
    record_embedding(program, token_ids, weight, out, first_id=first_id)
    program.run(token_ids.shape[0])
    return out
