"""Rotation of all pairs at once."""

import torch

from pagelet.kernels.kv_write.torch_native import kv_write
from pagelet.kernels.precision import accumulation_dtype


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `reference.rotary`."""
    wide = accumulation_dtype(x.dtype)
    first, second = x.to(wide).chunk(2, dim=-1)
    c, s = cos.to(wide).unsqueeze(1), sin.to(wide).unsqueeze(1)
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


def rotary_kv_write(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """As `reference.rotary_kv_write`, into a cache of floating-point numbers."""
    kv_write(rotary(key, cos, sin), value, kv_cache, slot_mapping)
    return rotary(query, cos, sin)
