"""Logprobs in C++."""

import torch

from pagelet.kernels.cpu.args import OpKind, TopLogprobsArgs
from pagelet.kernels.cpu.library import status
from pagelet.kernels.cpu.program import Program, pointer, row_stride
from pagelet.kernels.top_logprobs import reference


def top_logprobs(
    logits: torch.Tensor, chosen: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `reference.top_logprobs`; the lower of equally likely ids is first. With torch where the
    library is unavailable, and for float64, which it lacks."""
    if logits.dtype != torch.float32 or status().reason is not None:
        return reference.top_logprobs(logits, chosen, num_top)
    num_rows, vocab_size = logits.shape
    assert chosen.shape == (num_rows,)
    assert chosen.dtype == torch.int64
    assert 0 <= num_top <= vocab_size
    ids = torch.empty(num_rows, 1 + num_top, dtype=torch.int64)
    logprobs = torch.empty(num_rows, 1 + num_top, dtype=torch.float32)
    ranks = torch.empty(num_rows, dtype=torch.int64)
    if num_rows == 0:
        return ids, logprobs, ranks
    chosen = chosen.contiguous()
    args = TopLogprobsArgs(
        rows=0,
        logits=pointer(logits),
        chosen=pointer(chosen),
        ids=pointer(ids),
        logprobs=pointer(logprobs),
        ranks=pointer(ranks),
        logits_stride=row_stride(logits, name="logits"),
        vocab_size=vocab_size,
        num_top=num_top,
    )
    program = Program()
    program.append(OpKind.TOP_LOGPROBS, args, (logits, chosen, ids, logprobs, ranks))
    program.run(num_rows)
    return ids, logprobs, ranks
