"""Gated activations written as their definitions."""

import math

import torch

from pagelet.kernels.precision import accumulation_dtype


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, where gate_up: [..., 2 * size] holds gate, then up. Returns [..., size]."""
    gate, up = gate_up.to(accumulation_dtype(gate_up.dtype)).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up with GELU's tanh approximation (arXiv 1606.08415); as `silu_and_mul`."""
    gate, up = gate_up.to(accumulation_dtype(gate_up.dtype)).chunk(2, dim=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1 + torch.tanh(inner)) * up).to(gate_up.dtype)
