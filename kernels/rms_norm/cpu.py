"""RMSNorm in C++."""

import torch

from pagelet.kernels.cpu.args import OpKind, RmsNormArgs
from pagelet.kernels.cpu.program import Program, dtype_code, pointer, row_stride


def record_rms_norm(
    program: Program,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
    *,
    plus_one: bool = False,
    rows: int = 0,
) -> None:
    """Appends out = norm(x) * weight; with `residual`, residual += x and that sum is normed.

    x, out: [max_rows, ..., size], where out may be x; residual: [max_rows, size];
    weight: [size], which `plus_one` adds 1 to. x, residual and out have one dtype.
    """
    for other in (out, residual):
        if other is not None:
            assert (other.dtype, other.shape[1:]) == (x.dtype, x.shape[1:]), (other.shape, x.shape)
    weight = weight.float().contiguous()
    size = weight.shape[0]
    args = RmsNormArgs(
        rows=rows,
        x=pointer(x),
        residual=pointer(residual),
        weight=pointer(weight),
        out=pointer(out),
        x_stride=row_stride(x, name="x"),
        residual_stride=0 if residual is None else row_stride(residual, name="residual"),
        out_stride=row_stride(out, name="out"),
        dtype=dtype_code(x, name="x"),
        groups=x[0].numel() // size,
        size=size,
        eps=eps,
        weight_offset=1.0 if plus_one else 0.0,
    )
    program.append(OpKind.RMS_NORM, args, (x, residual, weight, out))


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False
) -> torch.Tensor:
    """As `reference.rms_norm`, for float32 and bfloat16."""
    rows = x if x.ndim > 1 else x.unsqueeze(0)
    out = torch.empty(rows.shape, dtype=x.dtype)
    if rows.shape[0]:
        program = Program()
        record_rms_norm(program, rows, weight, eps, out, plus_one=plus_one)
        program.run(rows.shape[0])
    return out.view(x.shape)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    plus_one: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `reference.add_rms_norm`, for float32 and bfloat16."""
    out, total = torch.empty(x.shape, dtype=x.dtype), residual.clone()
    if x.shape[0]:
        program = Program()
        record_rms_norm(program, x, weight, eps, out, total, plus_one=plus_one)
        program.run(x.shape[0])
    return out, total
