"""Gated activations in C++."""

import torch

from pagelet.kernels.cpu.args import GatedActivationArgs, OpKind
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride


def record_gated_activation(
    program: Program,
    gate_up: torch.Tensor,
    out: torch.Tensor,
    *,
    gelu_tanh: bool = False,
    rows: int = 0,
) -> None:
    """Appends out = act(gate) * up, with silu or GELU's tanh approximation.

    gate_up: [max_rows, 2 * size]; out: [max_rows, size] of the same dtype, and not the same memory.
    """
    size = out.shape[1]
    assert (gate_up.dtype, gate_up.shape[1]) == (out.dtype, 2 * size), (gate_up.shape, out.shape)
    args = GatedActivationArgs(
        rows=rows,
        x=pointer(gate_up),
        out=pointer(out),
        x_stride=row_stride(gate_up, name="gate_up"),
        out_stride=row_stride(out, name="out"),
        dtype=dtype_code(out, name="gate_up"),
        size=size,
        gelu_tanh=gelu_tanh,
    )
    program.append(OpKind.GATED_ACTIVATION, args, (gate_up, out))


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.silu_and_mul`, for float32 and bfloat16 [num_tokens, 2 * size]."""
    return _gated(gate_up, gelu_tanh=False)


def gelu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As `reference.gelu_and_mul`, for float32 and bfloat16 [num_tokens, 2 * size]."""
    return _gated(gate_up, gelu_tanh=True)


def _gated(gate_up: torch.Tensor, *, gelu_tanh: bool) -> torch.Tensor:
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    program = Program()
    record_gated_activation(program, gate_up, out, gelu_tanh=gelu_tanh)
    program.run(gate_up.shape[0])
    return out
