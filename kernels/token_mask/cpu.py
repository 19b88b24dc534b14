"""Token masks in C++."""

import torch

from pagelet.kernels.cpu.args import OpKind, TokenMaskArgs
from pagelet.kernels.cpu.library import status
from pagelet.kernels.cpu.program import Program, pointer, row_stride
from pagelet.kernels.token_mask import torch_native


def mask_tokens(logits: torch.Tensor, rows: torch.Tensor, words: torch.Tensor) -> None:
    """See `pagelet.kernels.token_mask.reference.mask_tokens`. With torch where the library is
    unavailable, and for float64, which it lacks."""
    if logits.dtype != torch.float32 or status().reason is not None:
        torch_native.mask_tokens(logits, rows, words)
        return
    num_masked, num_words = words.shape
    assert rows.shape == (num_masked,)
    assert rows.dtype == torch.int64
    assert words.dtype == torch.int32
    assert words.is_contiguous()
    if num_masked == 0:
        return
    assert int(rows.min()) >= 0
    assert int(rows.max()) < len(logits)
    args = TokenMaskArgs(
        rows=0,
        logits=pointer(logits),
        row_index=pointer(rows),
        words=pointer(words),
        logits_stride=row_stride(logits, name="logits"),
        vocab_size=logits.shape[-1],
        num_words=num_words,
    )
    program = Program()
    program.append(OpKind.TOKEN_MASK, args, (logits, rows, words))
    program.run(num_masked)
