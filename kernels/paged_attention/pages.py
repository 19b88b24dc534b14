"""What a page of the KV cache holds: `block_size` tokens of one KV head.

A cache is [2, num_blocks, num_kv_heads, block_size, token_size(head_dim, dtype)]. In a page of
floating-point numbers, token after token has its head_dim elements; FP8 (e4m3) has no scale. A
page of int8 has block_size * head_dim integers so, and then a float32 scale for each of its tokens:
an element is scale * integer, and the scale is the token's largest absolute value / 127. The C++
kernels lay out the same bytes otherwise (`cpu_pages.h`).
"""

import torch

MAX_FP8 = 448.0
"""The largest number of e4m3; larger ones are stored as it."""


def token_size(head_dim: int, cache_dtype: torch.dtype) -> int:
    """The last dimension of a KV cache. An int8 cache has a float32 scale for each token's key and
    value of a head, four bytes of the page."""
    return head_dim + 4 if cache_dtype == torch.int8 else head_dim


def int8_pages(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The integers [..., block_size, head_dim] and the scales [..., block_size] float32 of int8
    pages [..., block_size, token_size]: views."""
    block_size, size = pages.shape[-2:]
    head_dim = size - 4
    flat = pages.flatten(-2)
    integers = flat[..., : block_size * head_dim].view(*pages.shape[:-1], head_dim)
    return integers, flat[..., block_size * head_dim :].view(torch.float32)


def to_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers and scales of [..., head_dim]. A NaN spoils its token."""
    x = x.float()
    scale = x.abs().amax(-1) / 127
    inverse = torch.where(scale >= torch.finfo(torch.float32).tiny, 1 / scale, 0)
    scaled = (x * inverse.unsqueeze(-1)).nan_to_num()
    return torch.where(scaled >= 0, scaled + 0.5, scaled - 0.5).to(torch.int8), scale


def stored(x: torch.Tensor, cache_dtype: torch.dtype) -> torch.Tensor:
    """Keys or values as they come out of a cache of that type."""
    if cache_dtype == torch.int8:
        integers, scale = to_int8(x)
        return integers * scale.unsqueeze(-1)
    if cache_dtype == torch.float8_e4m3fn:
        x = x.clamp(-MAX_FP8, MAX_FP8)
    return x.to(cache_dtype)
