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
    program = Program()
    draw = RecordedSample(program, logits)
    draw.use(temperature, uniforms, min_p=min_p, top_k=top_k, top_p=top_p)
    program.run(len(logits))
    return draw.token_ids, draw.broken


class RecordedSample:
    """Draws in a program, from logits in one place, by columns that may differ in every run."""

    def __init__(self, program: Program, logits: torch.Tensor, *, rows: int = 0) -> None:
        """Appends the draw from logits [max_rows, vocab_size] float32; at first all are greedy."""
        max_rows, vocab_size = logits.shape
        self.token_ids = torch.empty(max_rows, dtype=torch.int64)
        """[max_rows], as all that `pagelet.kernels.sample.reference.sample` returns."""
        self.broken = torch.empty(max_rows, dtype=torch.bool)
        """[max_rows]"""
        self._columns: tuple[torch.Tensor | None, ...] = ()
        self._args = SampleArgs(
            rows=rows,
            logits=pointer(logits),
            token_ids=pointer(self.token_ids),
            broken=pointer(self.broken),
            logits_stride=row_stride(logits, name="logits"),
            vocab_size=vocab_size,
        )
        program.append(OpKind.SAMPLE, self._args, (logits, self.token_ids, self.broken))

    def use(
        self,
        temperature: torch.Tensor | None,
        uniforms: torch.Tensor | None,
        *,
        min_p: torch.Tensor | None = None,
        top_k: torch.Tensor | None = None,
        top_p: torch.Tensor | None = None,
    ) -> None:
        """Sets the columns of the next run, as `pagelet.kernels.sample.reference.sample` takes
        them; they are kept until others are set."""
        self._columns = (temperature, uniforms, min_p, top_k, top_p)
        for column in self._columns:
            assert column is None or column.is_contiguous()
            dtype = torch.int64 if column is top_k else torch.float64
            assert column is None or column.dtype == dtype, column.dtype
        args = self._args
        args.temperature, args.uniforms = pointer(temperature), pointer(uniforms)
        args.min_p, args.top_k, args.top_p = pointer(min_p), pointer(top_k), pointer(top_p)
