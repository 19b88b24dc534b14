"""Sparse mixture of experts (Shazeer et al., arXiv 1701.06538; Mixtral, arXiv 2401.04088)."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.moe import reference, torch_native

moe = Op(
    "moe",
    reference.moe,
    cpu={"torch_native": torch_native.moe},
    cuda={"triton": triton_implementation(reference.moe), "torch_native": torch_native.moe},
)

__all__ = ["moe"]
