"""The linear layer.

Products of dense matrices are torch's (cuBLAS, hipBLASLt) on GPUs; quantised weights stay so there
and are widened in registers, as fewer bytes are what a decode is waiting for.
"""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.linear import reference

linear = Op("linear", reference.linear)
grouped_linear = Op(
    "grouped_linear",
    reference.grouped_linear,
    cuda={"triton": triton_implementation(reference.grouped_linear)},
)

__all__ = ["grouped_linear", "linear"]
