"""A checkpoint's quantised matrix, unpacked when it is used and no more of it than is used."""

import dataclasses
from collections.abc import Sequence
from typing import Final

import torch
from torch.nn import functional

from pagelet.engine.weights.dequantize import dequantize
from pagelet.engine.weights.gguf_file import GGMLType
from pagelet.kernels.linear.ggml_blocks import UNPACKERS, unpack_ggml
from pagelet.kernels.linear.packed import GROUP
from pagelet.kernels.linear.quantized import QuantizedWeight, concatenate

# Weights that exist as floats at a time, where a type has to be rounded anew.
_CHUNK_ELEMENTS: Final = 1 << 22


@dataclasses.dataclass(frozen=True)
class QuantizedTensor:
    """A matrix [out_size, in_size] in GGML's blocks, over the bytes of the mapped file."""

    rows: torch.Tensor  # [out_size, bytes of a whole row] uint8
    ggml_type: GGMLType
    first_column: int
    num_columns: int

    @property
    def shape(self) -> Sequence[int]:
        """[out_size, in_size]."""
        return self.rows.shape[0], self.num_columns

    def narrow(self, dim: int, start: int, length: int) -> "QuantizedTensor":
        """As torch's."""
        if dim == 0:
            return dataclasses.replace(self, rows=self.rows.narrow(0, start, length))
        first = self.first_column + start
        return dataclasses.replace(self, first_column=first, num_columns=length)

    def reorder_rows(self, order: torch.Tensor) -> "QuantizedTensor":
        """Row i becomes what row order[i] was."""
        return dataclasses.replace(self, rows=self.rows[order])

    def pad_rows(self, count: int) -> "QuantizedTensor":
        """With rows of zeros at the end: bytes of zeros have scales of zero in every type."""
        return dataclasses.replace(self, rows=functional.pad(self.rows, (0, 0, 0, count)))

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """The weights as floats."""
        blocks, skipped = self._blocks()
        size = blocks.shape[1] // self.ggml_type.block_bytes * self.ggml_type.block_size
        shape = blocks.shape[0], size
        data = blocks.contiguous().flatten().numpy()
        whole = dequantize(data, self.ggml_type, shape, dtype)
        return whole.narrow(1, skipped, self.num_columns)

    def quantized(self) -> QuantizedWeight:
        """The weights in groups of 32: exactly, where the type has such groups of 4 or 8 bits and
        the columns begin with one; otherwise rounded to int8."""
        blocks, skipped = self._blocks()
        if self.ggml_type.name in UNPACKERS and skipped % GROUP == 0:
            whole = unpack_ggml(blocks, self.ggml_type.name)
            return whole.narrow_inputs(skipped, self.num_columns)
        count = max(1, _CHUNK_ELEMENTS // self.num_columns)
        parts = (
            self.narrow(0, start, min(count, self.rows.shape[0] - start))
            for start in range(0, self.rows.shape[0], count)
        )
        return concatenate(
            [QuantizedWeight.from_floats(part.dequantize(torch.float32)) for part in parts]
        )

    def _blocks(self) -> tuple[torch.Tensor, int]:
        """The bytes of the blocks that hold the columns, and how many columns they begin before."""
        size, num_bytes = self.ggml_type.block_size, self.ggml_type.block_bytes
        first, end = self.first_column // size, -(-(self.first_column + self.num_columns) // size)
        blocks = self.rows.narrow(1, first * num_bytes, (end - first) * num_bytes)
        return blocks, self.first_column - first * size


StoredTensor = torch.Tensor | QuantizedTensor
"""A tensor as a checkpoint has it."""


def as_floats(stored: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """Floats as they are, quantised weights as `dtype`."""
    return stored.dequantize(dtype) if isinstance(stored, QuantizedTensor) else stored
