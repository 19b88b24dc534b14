"""What kernels that work on rows of elements share."""

import torch
import triton
import triton.language as tl

from pagelet.kernels.precision import accumulation_dtype

NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.int8: "int8",
}
"""How examples name element types."""


def accumulator(dtype: torch.dtype) -> tl.dtype:
    """Triton's type for `accumulation_dtype`."""
    return tl.float64 if accumulation_dtype(dtype) == torch.float64 else tl.float32


def warps_of_row(size: int) -> int:
    """Warps for a program that holds a row: 16 to 32 elements a thread, but for small rows."""
    return int(max(1, min(16, triton.next_power_of_2(size) // 512)))
