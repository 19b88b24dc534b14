"""Rotation of all pairs at once."""

import torch

from pagelet.kernels.precision import accumulation_dtype


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `reference.rotary`."""
    wide = accumulation_dtype(x.dtype)
    first, second = x.to(wide).chunk(2, dim=-1)
    c, s = cos.to(wide).unsqueeze(1), sin.to(wide).unsqueeze(1)
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)
