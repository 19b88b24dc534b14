"""Sampling in C++."""

import torch

from pagelet.kernels.cpu.args import OpKind, SampleArgs
from pagelet.kernels.cpu.library import status
from pagelet.kernels.cpu.program import Program, pointer, row_stride
from pagelet.kernels.sample import batched


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor | None,
    uniforms: torch.Tensor | None,
    *,
    min_p: torch.Tensor | None = None,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    max_top_k: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `pagelet.kernels.sample.reference.sample`. With torch where the library is unavailable,
    and for float64, which it lacks."""
    if logits.dtype != torch.float32 or status().reason is not None:
        return batched.sample(
            logits,
            temperature,
            uniforms,
            min_p=min_p,
            top_k=top_k,
            top_p=top_p,
            max_top_k=max_top_k,
        )
    num_rows, vocab_size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64)
    broken = torch.empty(num_rows, dtype=torch.bool)
    if num_rows == 0:
        return token_ids, broken
    columns = (temperature, uniforms, min_p, top_k, top_p)
    for column in columns:
        assert column is None or column.is_contiguous()
        dtype = torch.int64 if column is top_k else torch.float64
        assert column is None or column.dtype == dtype, column.dtype
    args = SampleArgs(
        rows=0,
        logits=pointer(logits),
        temperature=pointer(temperature),
        uniforms=pointer(uniforms),
        min_p=pointer(min_p),
        top_k=pointer(top_k),
        top_p=pointer(top_p),
        token_ids=pointer(token_ids),
        broken=pointer(broken),
        logits_stride=row_stride(logits, name="logits"),
        vocab_size=vocab_size,
    )
    program = Program()
    program.append(OpKind.SAMPLE, args, (logits, *columns, token_ids, broken))
    program.run(num_rows)
    return token_ids, broken
