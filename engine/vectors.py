"""Vectors of prompts."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


def normalized(vectors: Sequence[Vector] | Vector) -> Vector:
    """The vectors [num_vectors, size] with a length of 1."""
    stacked = np.asarray(vectors, np.float64)
    lengths = np.linalg.norm(stacked, axis=1, keepdims=True)
    unit: Vector = (stacked / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit


def cosines(first: Vector, second: Vector) -> list[float]:
    """Of each vector of `second` with that of `first` in its place, or with its only one. Both
    have a length of 1, but for rounding, which takes no cosine beyond 1."""
    products = (first * second).sum(axis=1)
    return [float(product) for product in products.clip(-1, 1)]
