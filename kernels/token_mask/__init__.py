"""Forbids tokens by rows of bits, as grammars give them."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.gpu.lazy import triton_implementation
from pagelet.kernels.token_mask import cpu, reference, torch_native

mask_tokens = Op(
    "mask_tokens",
    reference.mask_tokens,
    cpu={"cpp": cpu.mask_tokens, "torch_native": torch_native.mask_tokens},
    cuda={
        "triton": triton_implementation(reference.mask_tokens),
        "torch_native": torch_native.mask_tokens,
    },
)

__all__ = ["mask_tokens"]
