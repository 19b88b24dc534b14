"""Writing a step's keys and values into the paged KV cache."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.kv_write import reference, torch_native

kv_write = Op(
    "kv_write",
    reference.kv_write,
    cpu={"torch_native": torch_native.kv_write},
    cuda={
        "triton": triton_implementation(reference.kv_write),
        "torch_native": torch_native.kv_write,
    },
)

__all__ = ["kv_write"]
