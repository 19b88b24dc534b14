"""A checkpoint's quantised matrix, unpacked when it is used and no more of it than is used."""

import abc
from collections.abc import Iterator, Sequence
from typing import Final, Self

import torch

from pagelet.kernels.linear.grouped import GroupedWeight
from pagelet.kernels.linear.quantized import QuantizedWeight, concatenate

# Weights that exist as floats at a time, where a type has to be rounded anew.
_CHUNK_ELEMENTS: Final = 1 << 22


class QuantizedTensor(abc.ABC):
    """A matrix [out_size, in_size] as one of the formats of checkpoints holds it."""

    @property
    @abc.abstractmethod
    def shape(self) -> Sequence[int]:
        """[out_size, in_size]."""

    @abc.abstractmethod
    def narrow(self, dim: int, start: int, length: int) -> Self:
        """As torch's."""

    @abc.abstractmethod
    def pad_rows(self, count: int) -> Self:
        """With rows of zeros at the end."""

    @abc.abstractmethod
    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights as floats."""

    @abc.abstractmethod
    def quantized(self) -> QuantizedWeight:
        """The weights in groups of 32 inputs: exactly, where the format has groups of so many with
        integers of 4 or 8 bits; otherwise rounded to int8."""

    @abc.abstractmethod
    def grouped(self) -> GroupedWeight | None:
        """The weights exactly, as a GPU holds them; None where only floats would be exact."""

    def _rounded(self) -> QuantizedWeight:
        """The weights rounded to int8."""
        parts = (part.dequantize(torch.float32) for part in self._chunks())
        return concatenate([QuantizedWeight.from_floats(part) for part in parts])

    def _chunks(self) -> Iterator[Self]:
        """The rows in order, few enough at a time for temporaries of their floats."""
        num_rows, num_columns = self.shape
        count = max(1, _CHUNK_ELEMENTS // num_columns)
        for start in range(0, num_rows, count):
            yield self.narrow(0, start, min(count, num_rows - start))


StoredTensor = torch.Tensor | QuantizedTensor
"""A tensor as a checkpoint has it."""


def as_floats(stored: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """Floats as they are, quantised weights as `dtype`."""
    return stored.dequantize(dtype) if isinstance(stored, QuantizedTensor) else stored
