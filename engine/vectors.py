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
