"""The linear layer on torch's matrix product."""

import torch

from pagelet.kernels.linear.grouped import GroupedWeight
from pagelet.kernels.precision import accumulation_dtype


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias. x: [num_tokens, in_size], weight: [out_size, in_size],
    bias: [out_size]; returns [num_tokens, out_size]."""
    return torch.nn.functional.linear(x, weight, bias)


def grouped_linear(
    x: torch.Tensor, weight: GroupedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """As `linear`, on a weight that stays quantised; products and sums are those of the weight's
    exact numbers."""
    wide = accumulation_dtype(x.dtype)
    out = x.to(wide) @ weight.dequantize(wide).T
    return (out if bias is None else out + bias.to(wide)).to(x.dtype)
