"""Quantised weights of a linear layer as plain arrays, between a checkpoint and `PackedLinear`."""

import dataclasses
from collections.abc import Sequence

import torch

from pagelet.kernels.linear.packed import GROUP, LinearFormat, PackedLinear, quantise_q8


@dataclasses.dataclass(frozen=True)
class QuantizedWeight:
    """A weight [out_size, in_size]: scale * value, or scale * value + minimum."""

    scales: torch.Tensor  # [out_size, in_size / 32] float32
    values: torch.Tensor  # [out_size, in_size], int8; with minima uint8, 0 to 15
    minima: torch.Tensor | None = None  # as scales

    @classmethod
    def from_floats(cls, weight: torch.Tensor) -> "QuantizedWeight":
        """Rounds to int8, with a scale for each 32 inputs."""
        return cls(*quantise_q8(weight))

    @property
    def format(self) -> LinearFormat:
        """What it is packed as."""
        return "q8" if self.minima is None else "q4"

    def narrow_inputs(self, start: int, length: int) -> "QuantizedWeight":
        """Some of the inputs, from the start of a group."""
        assert start % GROUP == 0
        groups = start // GROUP, -(-length // GROUP)
        return QuantizedWeight(
            self.scales.narrow(1, *groups),
            self.values.narrow(1, start, length),
            None if self.minima is None else self.minima.narrow(1, *groups),
        )

    def pack(self) -> PackedLinear:
        """The same numbers in the CPU library's order."""
        if self.minima is None:
            return PackedLinear.from_q8_blocks(self.scales, self.values)
        return PackedLinear.from_q4_blocks(self.scales, self.minima, self.values)


def concatenate(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Weights of one format and input as one, their outputs in order."""
    if len(weights) == 1:
        return weights[0]
    minima = [weight.minima for weight in weights if weight.minima is not None]
    assert len(minima) in (0, len(weights)), "weights of two formats"
    return QuantizedWeight(
        torch.cat([weight.scales for weight in weights]),
        torch.cat([weight.values for weight in weights]),
        torch.cat(minima) if minima else None,
    )
