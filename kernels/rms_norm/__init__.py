"""Root mean square layer normalisation (Zhang and Sennrich, arXiv 1910.07467)."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.rms_norm import reference, torch_native

rms_norm = Op(
    "rms_norm",
    reference.rms_norm,
    cpu={"torch_native": torch_native.rms_norm},
    cuda={
        "triton": triton_implementation(reference.rms_norm),
        "torch_native": torch_native.rms_norm,
    },
)
add_rms_norm = Op(
    "add_rms_norm",
    reference.add_rms_norm,
    cpu={"torch_native": torch_native.add_rms_norm},
    cuda={
        "triton": triton_implementation(reference.add_rms_norm),
        "torch_native": torch_native.add_rms_norm,
    },
)

__all__ = ["add_rms_norm", "rms_norm"]
