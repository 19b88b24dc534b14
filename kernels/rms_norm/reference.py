"""RMSNorm written as its definition."""

import torch

from pagelet.kernels.precision import accumulation_dtype


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False
) -> torch.Tensor:
    """x / sqrt(mean(x ** 2) + eps) * weight over the last dimension, rounded once at the end.

    `plus_one` multiplies by 1 + weight (Gemma). x: [..., size], weight: [size].
    """
    wide = x.to(accumulation_dtype(x.dtype))
    scale = weight.to(wide.dtype) + (1 if plus_one else 0)
    mean_square = (wide * wide).mean(dim=-1, keepdim=True)
    return (wide / torch.sqrt(mean_square + eps) * scale).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    plus_one: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The RMSNorm of x + residual, and that sum (the next residual)."""
    total = x + residual
    return rms_norm(total, weight, eps, plus_one), total
