"""A matrix of FP8 numbers or small integers times scales that blocks of them share, which is what
FP8, GPTQ, AWQ and compressed-tensors checkpoints have in common."""

import dataclasses
from collections.abc import Sequence

import torch
from torch.nn import functional

from pagelet.engine.weights.quantized_tensor import QuantizedTensor
from pagelet.kernels.linear.packed import GROUP
from pagelet.kernels.linear.quantized import QuantizedWeight
from pagelet.kernels.precision import accumulation_dtype


@dataclasses.dataclass(frozen=True)
class PackedIntegers:
    """Unsigned integers [rows, columns], several of them in each int32 word along one dimension."""

    words: torch.Tensor  # int32, [rows, columns] but fewer along `dim`
    bits: int
    dim: int
    first: int
    """Of the words' integers along `dim`, the first that belongs to the matrix."""
    count: int
    """How many do."""
    places: tuple[int, ...] | None = None
    """Where in a word each of its integers lies, counted from the lowest bits; None: in order."""

    @property
    def shape(self) -> Sequence[int]:
        """[rows, columns]."""
        rows, columns = self.words.shape
        return (self.count, columns) if self.dim == 0 else (rows, self.count)

    def narrow(self, dim: int, start: int, length: int) -> "PackedIntegers":
        """As torch's."""
        if dim != self.dim:
            return dataclasses.replace(self, words=self.words.narrow(dim, start, length))
        per_word = 32 // self.bits
        first = self.first + start
        word, end = first // per_word, -(-(first + length) // per_word)
        words = self.words.narrow(dim, word, end - word)
        return dataclasses.replace(self, words=words, first=first - word * per_word, count=length)

    def unpack(self) -> torch.Tensor:
        """uint8 [rows, columns]."""
        per_word = 32 // self.bits
        places = torch.tensor(self.places or range(per_word), dtype=torch.int32)
        apart = (self.words.unsqueeze(-1) >> (places * self.bits)) & ((1 << self.bits) - 1)
        integers = apart.to(torch.uint8)  # [rows of words, columns of words, per_word]
        rows_or_columns = integers.mT.flatten(0, 1) if self.dim == 0 else integers.flatten(1)
        return rows_or_columns.narrow(self.dim, self.first, self.count)


@dataclasses.dataclass(frozen=True)
class ScaledTensor(QuantizedTensor):
    """weight = scale * (value - zero), with the scale and the zero of a value's row and column
    groups."""

    values: torch.Tensor | PackedIntegers
    """[out_size, in_size]: float8, int8, or packed unsigned integers."""
    scales: torch.Tensor  # [row groups, column groups]
    zeros: torch.Tensor | None  # integers like `scales`; None: all 0
    row_group: torch.Tensor  # [out_size] int64
    column_group: torch.Tensor  # [in_size] int64

    @property
    def shape(self) -> Sequence[int]:
        return self.values.shape

    def narrow(self, dim: int, start: int, length: int) -> "ScaledTensor":
        values = self.values.narrow(dim, start, length)
        if dim == 0:
            group = self.row_group.narrow(0, start, length)
            return dataclasses.replace(self, values=values, row_group=group)
        group = self.column_group.narrow(0, start, length)
        return dataclasses.replace(self, values=values, column_group=group)

    def pad_rows(self, count: int) -> "ScaledTensor":
        """The new rows' scale is 0."""
        values = _plain(self.values)
        none = functional.pad(self.scales, (0, 0, 0, 1))
        zeros = None if self.zeros is None else functional.pad(self.zeros, (0, 0, 0, 1))
        return dataclasses.replace(
            self,
            values=torch.cat([values, values.new_zeros(count, values.shape[1])]),
            scales=none,
            zeros=zeros,
            row_group=functional.pad(self.row_group, (0, count), value=len(self.scales)),
        )

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        weight = torch.empty(tuple(self.shape), dtype=dtype)
        row = 0
        for part in self._chunks():
            rows = part.shape[0]
            weight[row : row + rows] = part._floats(accumulation_dtype(dtype))
            row += rows
        return weight

    def _floats(self, dtype: torch.dtype) -> torch.Tensor:
        values = _plain(self.values).to(dtype)
        if self.zeros is not None:
            values -= self._spread(self.zeros.to(dtype), self.column_group)
        return values.mul_(self._spread(self.scales.to(dtype), self.column_group))

    def quantized(self) -> QuantizedWeight:
        """Exactly for integers whose columns share scales by 32 or more; float8, and columns that
        are grouped in another order, are rounded to int8."""
        in_size = self.shape[1]
        groups = self.column_group[::GROUP]
        in_groups = torch.equal(groups.repeat_interleave(GROUP)[:in_size], self.column_group)
        if not in_groups or (isinstance(self.values, torch.Tensor) and _is_float8(self.values)):
            return self._rounded()
        values = _plain(self.values)
        scales = self._spread(self.scales.float(), groups)
        zeros = None if self.zeros is None else self._spread(self.zeros.float(), groups)
        if isinstance(self.values, PackedIntegers) and self.values.bits <= 4:
            minima = torch.zeros_like(scales) if zeros is None else -zeros * scales
            return QuantizedWeight(scales, values, minima)
        if zeros is not None:
            shifts = self._spread(self.zeros.to(torch.int16), self.column_group)  # type: ignore[union-attr]
            shifted = values.to(torch.int16) - shifts
            if shifted.min() < -128 or shifted.max() > 127:
                return self._rounded()
            values = shifted.to(torch.int8)
        elif values.dtype != torch.int8:
            return self._rounded()
        return QuantizedWeight(scales, values)

    def _spread(self, grouped: torch.Tensor, column_group: torch.Tensor) -> torch.Tensor:
        """Numbers of the groups, as [out_size, columns of those groups]."""
        return grouped[self.row_group[:, None], column_group[None]]


def _plain(values: torch.Tensor | PackedIntegers) -> torch.Tensor:
    return values.unpack() if isinstance(values, PackedIntegers) else values


def _is_float8(values: torch.Tensor) -> bool:
    return values.dtype.is_floating_point
