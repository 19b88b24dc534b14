"""A matrix of FP8 numbers or small integers times scales that blocks of them share, which is what
FP8, GPTQ, AWQ and compressed-tensors checkpoints have in common."""

import dataclasses
from collections.abc import Sequence

import torch
from torch.nn import functional

from pagelet.engine.weights.quantized_tensor import QuantizedTensor
from pagelet.kernels.linear.grouped import BLOCK, GroupedWeight
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
        groups = _groups_of(self.column_group, GROUP)
        if groups is None:
            return self._rounded()
        scales = self._spread(self.scales.float(), groups)
        if self._is_int4:
            return QuantizedWeight(scales, _plain(self.values), self._minima(scales, groups))
        signed = self._int8()
        return self._rounded() if signed is None else QuantizedWeight(scales, signed)

    def grouped(self) -> GroupedWeight | None:
        """As `quantized`, and e4m3 as it is; in groups as large as the checkpoint's. Columns that
        are grouped in another order (GPTQ's of activations) are brought together."""
        return self._grouped(None) or self._grouped(self.column_group.argsort(stable=True))

    def _grouped(self, order: torch.Tensor | None) -> GroupedWeight | None:
        """`grouped`, with the columns in that order."""
        in_size = self.shape[1]
        arranged = self.column_group if order is None else self.column_group[order]
        changes = (arranged.diff() != 0).nonzero()
        size = int(changes[0]) + 1 if len(changes) else -(-in_size // BLOCK) * BLOCK
        groups = None if size % GROUP else _groups_of(arranged, size)
        if groups is None:  # a rank's columns may begin within a group
            size, groups = GROUP, _groups_of(arranged, GROUP)
        if groups is None:
            return None

        def in_order(values: torch.Tensor) -> torch.Tensor:
            return values.contiguous() if order is None else values[:, order].contiguous()

        scales = self._spread(self.scales.float(), groups)
        turned = scales.T.contiguous()
        if self._is_int4:
            minima = self._minima(scales, groups).T.contiguous()
            weight = GroupedWeight.from_int4(in_order(_plain(self.values)), turned, minima, size)
            return dataclasses.replace(weight, order=order)
        if isinstance(self.values, torch.Tensor) and self.values.dtype == torch.float8_e4m3fn:
            if self.zeros is not None:
                return None
            values = in_order(self.values.view(torch.uint8)).view(torch.float8_e4m3fn)
            return GroupedWeight("fp8", values, turned, None, size, in_size, order)
        signed = self._int8()
        if signed is None:
            return None
        return GroupedWeight("int8", in_order(signed), turned, None, size, in_size, order)

    @property
    def _is_int4(self) -> bool:
        return isinstance(self.values, PackedIntegers) and self.values.bits <= 4

    def _minima(self, scales: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """Of groups with those scales [out_size, groups]: what a value of 0 stands for."""
        if self.zeros is None:
            return torch.zeros_like(scales)
        return -self._spread(self.zeros.float(), groups) * scales

    def _int8(self) -> torch.Tensor | None:
        """The values less their zeros as int8; None if they don't fit, or are no integers."""
        values = _plain(self.values)
        if values.dtype.is_floating_point:
            return None
        if self.zeros is None:
            return values if values.dtype == torch.int8 else None
        shifted = values.to(torch.int16)
        shifted -= self._spread(self.zeros.to(torch.int16), self.column_group)
        fits = bool(shifted.min() >= -128) and bool(shifted.max() <= 127)
        return shifted.to(torch.int8) if fits else None

    def _spread(self, grouped: torch.Tensor, column_group: torch.Tensor) -> torch.Tensor:
        """Numbers of the groups, as [out_size, columns of those groups]."""
        return grouped[self.row_group[:, None], column_group[None]]


def _plain(values: torch.Tensor | PackedIntegers) -> torch.Tensor:
    return values.unpack() if isinstance(values, PackedIntegers) else values


def _groups_of(column_group: torch.Tensor, size: int) -> torch.Tensor | None:
    """The column group of every `size` columns; None if they don't all have the same."""
    groups = column_group[::size]
    spread = groups.repeat_interleave(size)[: len(column_group)]
    return groups if torch.equal(spread, column_group) else None
