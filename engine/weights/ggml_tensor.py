"""A matrix in GGML's blocks."""

import dataclasses
from collections.abc import Sequence

import torch
from torch.nn import functional

from pagelet.engine.weights.dequantize import dequantize
from pagelet.engine.weights.gguf_file import GGMLType
from pagelet.engine.weights.quantized_tensor import QuantizedTensor
from pagelet.kernels.linear.ggml_blocks import (
    UNPACKERS,
    WIDE_UNPACKERS,
    unpack_ggml,
    unpack_ggml_wide,
)
from pagelet.kernels.linear.grouped import GroupedWeight
from pagelet.kernels.linear.packed import GROUP
from pagelet.kernels.linear.quantized import QuantizedWeight


@dataclasses.dataclass(frozen=True)
class GGMLTensor(QuantizedTensor):
    """Over the bytes of the mapped file."""

    rows: torch.Tensor  # [out_size, bytes of a whole row] uint8
    ggml_type: GGMLType
    first_column: int
    num_columns: int

    @property
    def shape(self) -> Sequence[int]:
        return self.rows.shape[0], self.num_columns

    def narrow(self, dim: int, start: int, length: int) -> "GGMLTensor":
        if dim == 0:
            return dataclasses.replace(self, rows=self.rows.narrow(0, start, length))
        first = self.first_column + start
        return dataclasses.replace(self, first_column=first, num_columns=length)

    def reorder_rows(self, order: torch.Tensor) -> "GGMLTensor":
        """Row i becomes what row order[i] was."""
        return dataclasses.replace(self, rows=self.rows[order])

    def pad_rows(self, count: int) -> "GGMLTensor":
        """Bytes of zeros have scales of zero in every type."""
        return dataclasses.replace(self, rows=functional.pad(self.rows, (0, 0, 0, count)))

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        blocks, skipped = self._blocks()
        size = blocks.shape[1] // self.ggml_type.block_bytes * self.ggml_type.block_size
        shape = blocks.shape[0], size
        data = blocks.contiguous().flatten().numpy()
        whole = dequantize(data, self.ggml_type, shape, dtype)
        return whole.narrow(1, skipped, self.num_columns)

    def quantized(self) -> QuantizedWeight:
        """Exactly, where the type is of `UNPACKERS` and the columns begin with a group."""
        return self._exactly() or self._rounded()

    def grouped(self) -> GroupedWeight | None:
        exact = self._exactly()
        if exact is not None:
            return GroupedWeight.from_quantized(exact)
        blocks, skipped = self._blocks()
        if self.ggml_type.name not in WIDE_UNPACKERS:
            return None
        whole = unpack_ggml_wide(blocks, self.ggml_type.name)
        is_aligned = skipped % whole.group_size == 0
        return whole.narrow_inputs(skipped, self.num_columns) if is_aligned else None

    def _exactly(self) -> QuantizedWeight | None:
        blocks, skipped = self._blocks()
        if self.ggml_type.name not in UNPACKERS or skipped % GROUP:
            return None
        return unpack_ggml(blocks, self.ggml_type.name).narrow_inputs(skipped, self.num_columns)

    def _blocks(self) -> tuple[torch.Tensor, int]:
        """The bytes of the blocks that hold the columns, and how many columns they begin before."""
        size, num_bytes = self.ggml_type.block_size, self.ggml_type.block_bytes
        first, end = self.first_column // size, -(-(self.first_column + self.num_columns) // size)
        blocks = self.rows.narrow(1, first * num_bytes, (end - first) * num_bytes)
        return blocks, self.first_column - first * size
