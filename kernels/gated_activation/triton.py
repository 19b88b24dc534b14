"""Gated activations in Triton, in one pass over gate and up (as in Liger Kernel's SwiGLU, arXiv
2410.10989)."""

from collections.abc import Iterator
from functools import partial

import torch
import triton
import triton.language as tl

from pagelet.kernels.gpu.device import sigmoid, tanh
from pagelet.kernels.gpu.elements import NAMES, accumulator
from pagelet.kernels.gpu.launch import Example, fake, launch

_BLOCK = 1024


@triton.jit
def gated_activation_kernel(
    gate_up,  # [rows, 2 * SIZE]
    out,  # [rows, SIZE]
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    GELU_TANH: tl.constexpr,
    ACCUMULATOR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    at = gate_up + row * (2 * SIZE) + columns
    gate = tl.load(at, mask=inside, other=0).to(ACCUMULATOR)
    up = tl.load(at + SIZE, mask=inside, other=0).to(ACCUMULATOR)
    if GELU_TANH:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)  # sqrt(2 / pi)
        activated = 0.5 * gate * (1 + tanh(inner))
    else:
        activated = gate * sigmoid(gate)
    tl.store(out + row * SIZE + columns, (activated * up).to(out.dtype.element_ty), mask=inside)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.silu_and_mul`."""
    return _gated(gate_up, gelu_tanh=False)


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.gelu_and_mul`."""
    return _gated(gate_up, gelu_tanh=True)


def _gated(gate_up: torch.Tensor, *, gelu_tanh: bool) -> torch.Tensor:
    size = gate_up.shape[-1] // 2
    out = torch.empty(*gate_up.shape[:-1], size, dtype=gate_up.dtype, device=gate_up.device)
    block = min(_BLOCK, triton.next_power_of_2(size))
    launch(
        gated_activation_kernel,
        (out.numel() // size, triton.cdiv(size, block)),
        gate_up.contiguous(),
        out,
        SIZE=size,
        BLOCK=block,
        GELU_TANH=gelu_tanh,
        ACCUMULATOR=accumulator(gate_up.dtype),
        num_warps=4,
    )
    return out


def examples() -> Iterator[Example]:
    """Both activations of a wide layer."""
    for dtype in (torch.bfloat16, torch.float16):
        gate_up = fake(64, 2 * 14336, dtype=dtype)
        yield Example(f"SwiGLU of 14336, {NAMES[dtype]}", partial(silu_and_mul, gate_up))
        yield Example(f"GeGLU of 14336, {NAMES[dtype]}", partial(gelu_and_mul, gate_up))
