"""The linear layer on torch's matrix product."""

import torch


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias. x: [num_tokens, in_size], weight: [out_size, in_size],
    bias: [out_size]; returns [num_tokens, out_size]."""
    return torch.nn.functional.linear(x, weight, bias)
