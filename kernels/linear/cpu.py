"""The linear layer on packed weights, in C++.

A row's result is bit-equal whatever the other rows of the call, their number, and the number of
threads.
"""

import torch

from pagelet.kernels.cpu.args import LinearArgs, OpKind
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride
from pagelet.kernels.linear.packed import PackedLinear


def record_linear(
    program: Program,
    x: torch.Tensor,
    packed: PackedLinear,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    accumulate: bool = False,
    rows: int = 0,
) -> None:
    """Appends out = x @ weight.T + bias, or with `accumulate` out += that, rounded once.

    x: [max_rows, in_size], out: [max_rows, out_size], each float32 or bfloat16; bias: [out_size].
    """
    assert x.shape[1] == packed.in_size, (x.shape, packed.in_size)
    assert out.shape[1] == packed.out_size, (out.shape, packed.out_size)
    bias = None if bias is None else bias.float().contiguous()
    args = LinearArgs(
        rows=rows,
        x=pointer(x),
        weight=pointer(packed.data),
        bias=pointer(bias),
        y=pointer(out),
        x_stride=row_stride(x, name="x"),
        y_stride=row_stride(out, name="out"),
        x_dtype=dtype_code(x, name="x"),
        y_dtype=dtype_code(out, name="out"),
        n=packed.out_size,
        k=packed.in_size,
        format=packed.code,
        accumulate=accumulate,
    )
    program.append(OpKind.LINEAR, args, (x, packed.data, bias, out))


def linear(
    x: torch.Tensor,
    packed: PackedLinear,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    *,
    accumulate: bool = False,
) -> torch.Tensor:
    """x @ weight.T + bias, into `out` if given (and with `accumulate`, added to it).

    x: [num_tokens, in_size] float32 or bfloat16. Returns [num_tokens, out_size], like x if `out`
    is not given.
    """
    if out is None:
        assert not accumulate
        out = x.new_empty(x.shape[0], packed.out_size)
    program = Program()
    record_linear(program, x, packed, out, bias, accumulate=accumulate)
    program.run(x.shape[0])
    return out
