"""Rotary position embedding (RoFormer, arXiv 2104.09864), in the half-split (NeoX) layout, with the
KV write that follows it."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.rotary import reference, torch_native

rotary_kv_write = Op(
    "rotary_kv_write",
    reference.rotary_kv_write,
    cpu={"torch_native": torch_native.rotary_kv_write},
    cuda={
        "triton": triton_implementation(reference.rotary_kv_write),
        "torch_native": torch_native.rotary_kv_write,
    },
)

__all__ = ["rotary_kv_write"]
