"""RMSNorm in few operator launches."""

import torch

from pagelet.kernels.precision import accumulation_dtype


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False
) -> torch.Tensor:
    """As `reference.rms_norm`."""
    wide = x.to(accumulation_dtype(x.dtype))
    scale = weight.to(wide.dtype)
    if plus_one:
        scale = scale + 1
    return torch.nn.functional.rms_norm(wide, weight.shape, scale, eps).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    plus_one: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.add_rms_norm`."""
    total = x + residual
    return rms_norm(total, weight, eps, plus_one), total
