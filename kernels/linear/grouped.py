"""Weights of a linear layer that stay quantised on a GPU: values of 4 or 8 bits, and scales."""

import dataclasses
from typing import Literal, Protocol

import torch
from torch.nn import functional

from pagelet.kernels.linear.packed import GROUP
from pagelet.kernels.linear.quantized import QuantizedWeight

Kind = Literal["int4", "int8", "fp8"]


class GroupedForm(Protocol):
    """A quantised weight, or one of every expert, as kernels see it."""

    @property
    def kind(self) -> Kind: ...
    @property
    def values(self) -> torch.Tensor: ...
    @property
    def scales(self) -> torch.Tensor: ...
    @property
    def minima(self) -> torch.Tensor | None: ...
    @property
    def group_size(self) -> int: ...
    @property
    def in_size(self) -> int: ...


BLOCK = 64
"""Inputs of int4 that share bytes: 32 in the low halves, the next 32 in the high ones."""


@dataclasses.dataclass(frozen=True)
class GroupedWeight:
    """A weight [out_size, in_size]: scale * value, or scale * value + minimum."""

    kind: Kind
    values: torch.Tensor
    """int8 or float8_e4m3fn [out_size, in_size]; of int4, which is unsigned, uint8
    [out_size, in_size / 2] with the inputs padded to whole blocks."""
    scales: torch.Tensor  # [groups, out_size] float32
    minima: torch.Tensor | None  # as scales
    group_size: int
    """Inputs of a group: of int8 a multiple of 16, otherwise of 32; at least in_size if there is
    one group."""
    in_size: int
    order: torch.Tensor | None = None
    """[in_size] int64: which input each of the values' columns belongs to; None: in order."""

    @property
    def shape(self) -> tuple[int, int]:
        """[out_size, in_size]."""
        return self.values.shape[0], self.in_size

    @property
    def nbytes(self) -> int:
        """Bytes that a step reads."""
        minima = 0 if self.minima is None else self.minima.nbytes
        return self.values.nbytes + self.scales.nbytes + minima

    @classmethod
    def from_quantized(cls, weight: QuantizedWeight) -> "GroupedWeight":
        """The same numbers, in groups of 32."""
        scales = weight.scales.T.contiguous()
        if weight.minima is None:
            values = weight.values.contiguous()
            return cls("int8", values, scales, None, GROUP, values.shape[1])
        return cls.from_int4(weight.values, scales, weight.minima.T.contiguous(), GROUP)

    @classmethod
    def from_int4(
        cls, values: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor, group_size: int
    ) -> "GroupedWeight":
        """From uint8 values [out_size, in_size] from 0 to 15."""
        out_size, in_size = values.shape
        halves = functional.pad(values, (0, -in_size % BLOCK)).view(out_size, -1, 2, BLOCK // 2)
        packed = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1).contiguous()
        return cls("int4", packed, scales, minima, group_size, in_size)

    @classmethod
    def from_floats(cls, weight: torch.Tensor, kind: Literal["int8", "fp8"]) -> "GroupedWeight":
        """Rounded by the largest magnitude: int8 in groups of 32, e4m3 by output."""
        weight = weight.float()
        out_size, in_size = weight.shape
        if kind == "fp8":
            scales = _scales(weight, torch.finfo(torch.float8_e4m3fn).max)
            values = (weight / scales).to(torch.float8_e4m3fn).contiguous()
            size = -(-in_size // BLOCK) * BLOCK
            return cls("fp8", values, scales.T.contiguous(), None, size, in_size)
        groups = functional.pad(weight, (0, -in_size % GROUP)).view(out_size, -1, GROUP)
        scales = _scales(groups, 127)
        values = (groups / scales).round().to(torch.int8).flatten(1)[:, :in_size].contiguous()
        return cls("int8", values, scales.squeeze(2).T.contiguous(), None, GROUP, in_size)

    def narrow_inputs(self, start: int, length: int) -> "GroupedWeight":
        """Some of the inputs of an int8 weight in order, from the start of a group."""
        assert self.kind == "int8"
        assert self.order is None
        assert start % self.group_size == 0
        groups = slice(start // self.group_size, -(-(start + length) // self.group_size))
        return dataclasses.replace(
            self,
            values=self.values[:, start : start + length].contiguous(),
            scales=self.scales[groups].contiguous(),
            minima=None if self.minima is None else self.minima[groups].contiguous(),
            in_size=length,
        )

    def arrange(self, x: torch.Tensor) -> torch.Tensor:
        """Activations [num_tokens, in_size] in the order of the values' columns."""
        return x if self.order is None else x.index_select(1, self.order)

    def to(self, device: torch.device) -> "GroupedWeight":
        """On a device."""
        minima = None if self.minima is None else self.minima.to(device)
        order = None if self.order is None else self.order.to(device)
        values, scales = self.values.to(device), self.scales.to(device)
        return dataclasses.replace(self, values=values, scales=scales, minima=minima, order=order)

    def join(self, other: "GroupedWeight") -> "GroupedWeight | None":
        """With the outputs of another weight of the same input after its own; None if it is of
        another form."""
        mine, others = self.minima, other.minima
        if not _same_order(self.order, other.order):
            return None
        if (self.kind, self.group_size, mine is None) != (
            other.kind,
            other.group_size,
            others is None,
        ):
            return None
        # float8 can't be concatenated, its bytes can.
        bytes_ = [weight.values.view(torch.uint8) for weight in (self, other)]
        return dataclasses.replace(
            self,
            values=torch.cat(bytes_).view(self.values.dtype),
            scales=torch.cat([self.scales, other.scales], dim=1),
            minima=None if mine is None or others is None else torch.cat([mine, others], dim=1),
        )

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight as floats [out_size, in_size]."""
        values = self.values
        if self.kind == "int4":
            blocks = values.view(self.shape[0], -1, 1, BLOCK // 2)
            values = torch.cat([blocks & 15, blocks >> 4], dim=2).flatten(1)[:, : self.in_size]
        group = torch.arange(self.in_size, device=values.device) // self.group_size
        weight = values.to(dtype) * self.scales.T[:, group].to(dtype)
        if self.minima is not None:
            weight += self.minima.T[:, group].to(dtype)
        return weight if self.order is None else weight[:, self.order.argsort()]


def _same_order(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)


def _scales(groups: torch.Tensor, largest: float) -> torch.Tensor:
    """With which the last dimension of float32 groups reaches `largest`; 1 for groups of zeros."""
    bound = groups.abs().amax(dim=-1, keepdim=True)
    return torch.where(bound > 0, bound / largest, 1)
