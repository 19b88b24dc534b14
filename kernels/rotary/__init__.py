"""Rotary position embedding (RoFormer, arXiv 2104.09864), in the half-split (NeoX) layout."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.rotary import reference, torch_native

rotary = Op(
    "rotary",
    reference.rotary,
    cpu={"torch_native": torch_native.rotary},
    cuda={
        "triton": triton_implementation(reference.rotary),
        "torch_native": torch_native.rotary,
    },
)

__all__ = ["rotary"]
