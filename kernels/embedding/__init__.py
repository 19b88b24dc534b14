"""Embedding lookup."""

from pagelet.kernels.dispatch import Op
from pagelet.kernels.embedding import reference

embedding = Op("embedding", reference.embedding)

__all__ = ["embedding"]
