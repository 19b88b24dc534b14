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
    if len(rows) == 0:
        return
    program = Program()
    RecordedMask(program, logits).use(rows, words)
    program.run(len(rows))


class RecordedMask:
    """Masks logits in one place in a program, by masks that may differ in every run."""

    def __init__(self, program: Program, logits: torch.Tensor, *, rows: int = 0) -> None:
        """Appends the operation on logits [max_rows, vocab_size] float32, for as many masks as the
        size `rows` of a run says."""
        self._num_rows = len(logits)
        self._masks: tuple[torch.Tensor, ...] = ()
        self._args = TokenMaskArgs(
            rows=rows,
            logits=pointer(logits),
            logits_stride=row_stride(logits, name="logits"),
            vocab_size=logits.shape[-1],
        )
        program.append(OpKind.TOKEN_MASK, self._args, (logits,))

    def use(self, rows: torch.Tensor, words: torch.Tensor) -> None:
        """Sets the masks of the next run, at least one, as
        `pagelet.kernels.token_mask.reference.mask_tokens` takes them."""
        num_masked, num_words = words.shape
        assert rows.shape == (num_masked,)
        assert rows.dtype == torch.int64
        assert words.dtype == torch.int32
        assert words.is_contiguous()
        assert int(rows.min()) >= 0
        assert int(rows.max()) < self._num_rows
        self._masks = (rows, words)
        self._args.row_index, self._args.words = pointer(rows), pointer(words)
        self._args.num_words = num_words
