"""Rotation of the pairs (i, i + head_dim / 2) of every head, one pair at a time."""

import torch

from pagelet.kernels.kv_write.reference import kv_write
from pagelet.kernels.precision import accumulation_dtype


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the queries or keys of each token by its position's angles.

    x: [num_tokens, num_heads, head_dim]; cos, sin: [num_tokens, head_dim / 2]. Returns a new
    tensor like x; the products are rounded once.
    """
    wide = accumulation_dtype(x.dtype)
    out = torch.empty_like(x)
    half = x.shape[-1] // 2
    for i in range(half):
        first, second = x[:, :, i].to(wide), x[:, :, i + half].to(wide)
        c, s = cos[:, i, None].to(wide), sin[:, i, None].to(wide)
        out[:, :, i] = first * c - second * s
        out[:, :, i + half] = second * c + first * s
    return out


def rotary_kv_write(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> torch.Tensor:
    """Turns queries and keys, and writes the keys, with their values, to the cache.

    query: [num_tokens, num_heads, head_dim]; key, value: [num_tokens, num_kv_heads, head_dim], the
    last dimension contiguous; cos and sin as of `rotary`, the rest as of `kv_write`. Returns the
    turned queries; of the turned keys, rounded to the model's type, the cache has the only copy.
    """
    kv_write(rotary(key, cos, sin), value, kv_cache, slot_mapping)
    return rotary(query, cos, sin)
