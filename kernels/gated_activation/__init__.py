"""Gated activations: act(gate) * up (Shazeer, arXiv 2002.05202)."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gated_activation import reference, torch_native
from pagelet.kernels.gpu.lazy import triton_implementation

silu_and_mul = Op(
    "silu_and_mul",
    reference.silu_and_mul,
    cpu={"torch_native": torch_native.silu_and_mul},
    cuda={
        "triton": triton_implementation(reference.silu_and_mul),
        "torch_native": torch_native.silu_and_mul,
    },
)
gelu_and_mul = Op(
    "gelu_and_mul",
    reference.gelu_and_mul,
    cpu={"torch_native": torch_native.gelu_and_mul},
    cuda={
        "triton": triton_implementation(reference.gelu_and_mul),
        "torch_native": torch_native.gelu_and_mul,
    },
)

__all__ = ["gelu_and_mul", "silu_and_mul"]
