"""Embedding lookup."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.embedding import reference
from pagelet.kernels.gpu.lazy import triton_implementation

embedding = Op(
    "embedding", reference.embedding, cuda={"triton": triton_implementation(reference.embedding)}
)

__all__ = ["embedding"]
