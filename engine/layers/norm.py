"""RMSNorm with its weight."""

import torch

from pagelet.engine.layers.placement import Placement, Weight, Weights, load_into
from pagelet.kernels.rms_norm import add_rms_norm, rms_norm


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

    def weights(self, prefix: str) -> Weights:
        yield Weight(
            f"{prefix}.weight", tuple(self.weight.shape), load_into(self.weight), is_norm=True
        )
