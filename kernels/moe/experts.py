"""A matrix of every expert, quantised, in one tensor each of values and of scales."""

import dataclasses

import torch

from pagelet.kernels.linear.grouped import GroupedWeight, Kind


@dataclasses.dataclass(frozen=True)
class GroupedExperts:
    """Weights [num_experts, out_size, in_size], each as `GroupedWeight` holds one."""

    kind: Kind
    values: torch.Tensor  # [num_experts, out_size, bytes or numbers of a row]
    scales: torch.Tensor  # [num_experts, groups, out_size] float32
    minima: torch.Tensor | None  # as scales
    group_size: int
    in_size: int

    @classmethod
    def empty(cls, num_experts: int, out_size: int, like: GroupedWeight) -> "GroupedExperts":
        """Uninitialised, for matrices of the same form as one's, on its device."""
        values, scales = like.values, like.scales
        size = num_experts, scales.shape[0], out_size
        return cls(
            like.kind,
            values.new_empty(num_experts, out_size, values.shape[1]),
            scales.new_empty(size),
            None if like.minima is None else scales.new_empty(size),
            like.group_size,
            like.in_size,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """[num_experts, out_size, in_size]."""
        return *self.values.shape[:2], self.in_size

    @property
    def nbytes(self) -> int:
        """In memory."""
        minima = 0 if self.minima is None else self.minima.nbytes
        return self.values.nbytes + self.scales.nbytes + minima

    def takes(self, weight: GroupedWeight) -> bool:
        """Whether a weight is of this form."""
        return (
            weight.kind == self.kind
            and weight.order is None
            and weight.group_size == self.group_size
            and (weight.minima is None) == (self.minima is None)
        )

    def put(self, expert: int, first_row: int, weight: GroupedWeight) -> None:
        """Copies a weight that it `takes` to an expert's outputs from the first one on."""
        rows = slice(first_row, first_row + weight.shape[0])
        self.values[expert, rows] = weight.values
        self.scales[expert, :, rows] = weight.scales
        if self.minima is not None:
            assert weight.minima is not None
            self.minima[expert, :, rows] = weight.minima

    def __getitem__(self, experts: slice) -> "GroupedExperts":
        """Some of the experts: views."""
        return dataclasses.replace(
            self,
            values=self.values[experts],
            scales=self.scales[experts],
            minima=None if self.minima is None else self.minima[experts],
        )

    def dequantize(self, expert: int, dtype: torch.dtype) -> torch.Tensor:
        """An expert's matrix as floats [out_size, in_size]."""
        minima = None if self.minima is None else self.minima[expert]
        weight = GroupedWeight(
            self.kind,
            self.values[expert],
            self.scales[expert],
            minima,
            self.group_size,
            self.in_size,
        )
        return weight.dequantize(dtype)


Experts = torch.Tensor | GroupedExperts
"""Of every expert a matrix [out_size, in_size]."""


def matrix_of(experts: Experts, expert: int, dtype: torch.dtype) -> torch.Tensor:
    """An expert's matrix as floats of `dtype`."""
    if isinstance(experts, GroupedExperts):
        return experts.dequantize(expert, dtype)
    return experts[expert].to(dtype)
