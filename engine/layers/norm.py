"""RMSNorm with its weight."""

import torch

from pagelet.engine.layers.placement import Placement, Weight, Weights, load_into
from pagelet.engine.layers.recording import Recorder, ResidualStream
from pagelet.kernels.rms_norm import add_rms_norm, rms_norm
from pagelet.kernels.rms_norm.cpu import record_rms_norm


class RMSNorm:
    """Root mean square normalisation over the last dimension; `plus_one` as Gemma's."""

    def __init__(self, size: int, eps: float, plus_one: bool, placement: Placement) -> None:
        self.eps = eps
        self.plus_one = plus_one
        self.weight = placement.empty(size).fill_(0 if plus_one else 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps, self.plus_one)

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and that sum: the new residual."""
        if residual is None:
            return self(x), x
        return add_rms_norm(x, residual, self.weight, self.eps, self.plus_one)

    def record(
        self,
        recorder: Recorder,
        x: torch.Tensor,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
    ) -> None:
        """Appends out = norm(x), or residual += x and out = norm(residual). `out` may be x."""
        record_rms_norm(
            recorder.program, x, self.weight, self.eps, out, residual, plus_one=self.plus_one
        )

    def record_add(self, recorder: Recorder, stream: ResidualStream) -> None:
        """Appends the addition of what is pending to the residual, and the norm of the sum."""
        if stream.pending:
            self.record(recorder, stream.hidden, stream.normed, stream.residual)
        else:
            self.record(recorder, stream.residual, stream.normed)
        stream.pending = True

    def weights(self, prefix: str) -> Weights:
        yield Weight(
            f"{prefix}.weight",
            tuple(self.weight.shape),
            load_into(self.weight),
            self.weight,
            is_norm=True,
        )
