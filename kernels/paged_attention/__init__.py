"""Causal attention over a paged KV cache (PagedAttention, arXiv 2309.06180)."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.paged_attention import reference, torch_native

paged_attention = Op(
    "paged_attention",
    reference.paged_attention,
    cpu={"torch_native": torch_native.paged_attention},
    cuda={
        "triton": triton_implementation(reference.paged_attention),
        "torch_native": torch_native.paged_attention,
    },
)

__all__ = ["paged_attention"]
