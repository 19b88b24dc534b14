"""The linear layer.

Products of dense matrices are torch's (cuBLAS, hipBLASLt) on GPUs, but for those whose bits must
not depend on the number of rows; quantised weights stay so there and are widened in registers, as
fewer bytes are what a decode is waiting for.
"""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu import invariance
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.linear import reference

_triton = triton_implementation(reference.linear)
linear = Op(
    "linear",
    reference.linear,
    cuda={"triton": _triton, "torch_native": reference.linear}
    if invariance.BATCH_INVARIANT
    else {"torch_native": reference.linear, "triton": _triton},
)
grouped_linear = Op(
    "grouped_linear",
    reference.grouped_linear,
    cuda={"triton": triton_implementation(reference.grouped_linear)},
)

__all__ = ["grouped_linear", "linear"]
