"""The weight of a linear layer: a tensor for torch, quantised for Triton, or packed for the CPU
library."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch

from pagelet.engine.layers.placement import Packing, Placement
from pagelet.engine.weights.quantized_tensor import QuantizedTensor, StoredTensor, as_floats
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.linear import grouped_linear, linear
from pagelet.kernels.linear.cpu import record_linear
from pagelet.kernels.linear.grouped import GroupedWeight
from pagelet.kernels.linear.packed import PackedLinear, pack_linear
from pagelet.kernels.linear.quantized import concatenate


class LinearWeight:
    """This rank's weight [out_size, in_size], of parts along the outputs that a checkpoint stores
    apart.

    It is packed as soon as its last part is there, so that a model is never in memory unpacked;
    parts that the checkpoint has quantised in different ways become products of their own. A weight
    that is quantised without packing (`Placement.keep_quantized`, `rounding`) is made likewise.
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
        self._is_kept = packing is None and (
            placement.keep_quantized or placement.rounding is not None
        )
        self._placement = placement
        self._parts: dict[int, StoredTensor] = {}
        self.packed: list[PackedLinear] = []
        """In the order of the outputs; empty without `packing`."""
        self.products: list[torch.Tensor | GroupedWeight] = []
        """In the order of the outputs, where a part is kept quantised; otherwise empty."""
        waits = packing is not None or self._is_kept
        self.tensor = placement.empty(0 if waits else self.out_size, in_size)
        """[out_size, in_size]; without outputs if the weight is packed or quantised."""

    @property
    def nbytes(self) -> int:
        """In memory, once it is loaded."""
        held = [self.tensor, *self.packed, *self.products]
        return sum(weight.nbytes for weight in held)

    @property
    def formats(self) -> set[str]:
        """Of the packed and the quantised parts."""
        quantized = {part.kind for part in self.products if isinstance(part, GroupedWeight)}
        return quantized | {packed.format for packed in self.packed}

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ weight.T + bias on a weight that is not packed."""
        if not self.products:
            return linear(x, self.tensor, bias)
        sizes = [weight.shape[0] for weight in self.products]
        biases = [None] * len(sizes) if bias is None else torch.split(bias, sizes)
        outs = [
            linear(x, weight, of_weight)
            if isinstance(weight, torch.Tensor)
            else grouped_linear(x, weight, of_weight)
            for weight, of_weight in zip(self.products, biases, strict=True)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)

    def load(self, part: int, shard: StoredTensor) -> None:
        """Takes this rank's shard of a part, [outputs of the part, in_size]."""
        if self._packing is None and not self._is_kept:
            rows = torch.split(self.tensor, self._part_sizes)[part]
            rows.copy_(as_floats(shard, rows.dtype))
            return
        self._parts[part] = shard
        if len(self._parts) == len(self._part_sizes):
            parts = [self._parts[i] for i in range(len(self._part_sizes))]
            self._parts.clear()
            if self._packing is not None:
                self.packed = list(pack(parts, self._packing))
                return
            self.products = _join(keep(part, self._placement) for part in parts)
            first = self.products[0]
            if len(self.products) == 1 and isinstance(first, torch.Tensor):
                self.products, self.tensor = [], first

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


def pack(parts: Sequence[StoredTensor], packing: Packing) -> Iterator[PackedLinear]:
    """Parts along the outputs for the CPU library, neighbours of one format together."""
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


def keep(part: StoredTensor, placement: Placement) -> torch.Tensor | GroupedWeight:
    """A part on its device: rounded as asked for, or quantised if it can stay so exactly."""
    if placement.rounding is not None:
        floats = as_floats(part, torch.float32)
        return GroupedWeight.from_floats(floats, placement.rounding).to(placement.device)
    grouped = part.grouped() if isinstance(part, QuantizedTensor) else None
    if grouped is not None:
        return grouped.to(placement.device)
    return as_floats(part, placement.dtype).to(placement.device, placement.dtype, copy=True)


def _join(parts: Iterable[torch.Tensor | GroupedWeight]) -> list[torch.Tensor | GroupedWeight]:
    """Neighbours of one form as one."""
    joined: list[torch.Tensor | GroupedWeight] = []
    for part in parts:
        last = joined[-1] if joined else None
        both: torch.Tensor | GroupedWeight | None = None
        if isinstance(last, torch.Tensor) and isinstance(part, torch.Tensor):
            both = torch.cat([last, part])
        elif isinstance(last, GroupedWeight) and isinstance(part, GroupedWeight):
            both = last.join(part)
        if both is None:
            joined.append(part)
        else:
            joined[-1] = both
    return joined
