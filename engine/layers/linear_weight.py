"""The weight of a linear layer: a tensor for torch, or packed for the CPU library."""

import itertools
from collections.abc import Iterator, Sequence

import torch

from pagelet.engine.layers.placement import Packing, Placement
from pagelet.engine.weights.quantized_tensor import QuantizedTensor, StoredTensor, as_floats
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.linear.cpu import record_linear
from pagelet.kernels.linear.packed import PackedLinear, pack_linear
from pagelet.kernels.linear.quantized import concatenate


class LinearWeight:
    """This rank's weight [out_size, in_size], of parts along the outputs that a checkpoint stores
    apart.

    It is packed as soon as its last part is there, so that a model is never in memory unpacked;
    parts that the checkpoint has quantised in different ways become products of their own.
    """

    def __init__(
        self,
        part_sizes: Sequence[int],
        in_size: int,
        placement: Placement,
        packing: Packing | None,
    ) -> None:
        """`part_sizes` are the outputs of each part."""
        self.in_size = in_size
        self.out_size = sum(part_sizes)
        self._part_sizes = list(part_sizes)
        self._packing = packing
        self._parts: dict[int, StoredTensor] = {}
        self.packed: list[PackedLinear] = []
        """In the order of the outputs; empty without `packing`."""
        self.tensor = placement.empty(0 if packing else self.out_size, in_size)
        """[out_size, in_size]; without outputs if there is `packing`."""

    @property
    def nbytes(self) -> int:
        """In memory, once it is loaded."""
        return self.tensor.nbytes + sum(packed.nbytes for packed in self.packed)

    def load(self, part: int, shard: StoredTensor) -> None:
        """Takes this rank's shard of a part, [outputs of the part, in_size]."""
        if self._packing is None:
            rows = torch.split(self.tensor, self._part_sizes)[part]
            rows.copy_(as_floats(shard, rows.dtype))
            return
        self._parts[part] = shard
        if len(self._parts) == len(self._part_sizes):
            parts = [self._parts[i] for i in range(len(self._part_sizes))]
            self.packed = list(_pack(parts, self._packing))
            self._parts.clear()

    def record(
        self,
        program: Program,
        x: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        """Appends out = x @ weight.T + bias on the packed weight."""
        sizes = [packed.out_size for packed in self.packed]
        biases = [None] * len(sizes) if bias is None else torch.split(bias, sizes)
        for packed, columns, of_columns in zip(
            self.packed, torch.split(out, sizes, dim=1), biases, strict=True
        ):
            record_linear(program, x, packed, columns, of_columns)


def _pack(parts: Sequence[StoredTensor], packing: Packing) -> Iterator[PackedLinear]:
    """Neighbours of one format together."""
    for quantized, run in itertools.groupby(
        parts, lambda part: packing.keep_quantized and isinstance(part, QuantizedTensor)
    ):
        if not quantized:
            floats = [as_floats(part, torch.float32) for part in run]
            yield pack_linear(torch.cat(floats), packing.format)
            continue
        weights = [part.quantized() for part in run if isinstance(part, QuantizedTensor)]
        for _, same in itertools.groupby(weights, lambda weight: weight.format):
            yield concatenate(list(same)).pack()
