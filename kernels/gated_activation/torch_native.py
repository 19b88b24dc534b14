"""Gated activations on torch's fused activations."""

import torch
from torch.nn import functional


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.silu_and_mul`, rounded after each of the two steps."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.gelu_and_mul`, rounded after each of the two steps."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up)
