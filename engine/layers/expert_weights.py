"""One matrix of every expert of a mixture: floats, quantised for Triton, or packed for the CPU
library."""

from collections.abc import Sequence

import torch

from pagelet.engine.layers.linear_weight import keep, pack
from pagelet.engine.layers.placement import LoadFunction, Placement
from pagelet.engine.weights.quantized_tensor import StoredTensor, as_floats
from pagelet.kernels.linear.grouped import GroupedWeight
from pagelet.kernels.linear.packed import PackedLinear
from pagelet.kernels.moe.experts import Experts, GroupedExperts


class ExpertWeights:
    """This rank's weights [num_experts, out_size, in_size], of parts along the outputs that a
    checkpoint stores apart.

    With `Placement.packing` each part is packed as soon as it is there. Without, they stay
    quantised (`Placement.keep_quantized`, `rounding`) if all of them have one form, and are floats
    otherwise.
    """

    def __init__(
        self, num_experts: int, part_sizes: Sequence[int], in_size: int, placement: Placement
    ) -> None:
        """`part_sizes` are the outputs of each part."""
        self._shape = num_experts, sum(part_sizes), in_size
        self._part_sizes = list(part_sizes)
        self._placement = placement
        self._is_kept = placement.keep_quantized or placement.rounding is not None
        self.packed: dict[tuple[int, int], PackedLinear] = {}
        """By expert and part; empty without `Placement.packing`."""
        waits = self._is_kept or placement.packing is not None
        # Which form it is to have, only the first shard tells.
        self.experts: Experts = placement.empty(*((0, 0, 0) if waits else self._shape))

    @property
    def nbytes(self) -> int:
        """In memory, once it is loaded."""
        return self.experts.nbytes + sum(packed.nbytes for packed in self.packed.values())

    @property
    def formats(self) -> set[str]:
        """Of packed and of quantised experts."""
        if isinstance(self.experts, GroupedExperts):
            return {self.experts.kind}
        return {packed.format for packed in self.packed.values()}

    def loader(self, expert: int, part: int, dim: int, rank: int) -> LoadFunction:
        """What takes this rank's shard, number `rank` along `dim`, of a full matrix."""
        shard_shape = self._part_sizes[part], self._shape[2]

        def load(full: StoredTensor) -> None:
            size = shard_shape[dim]
            self._load(expert, part, full.narrow(dim, rank * size, size))

        return load

    def _load(self, expert: int, part: int, shard: StoredTensor) -> None:
        if self._placement.packing is not None:
            (self.packed[expert, part],) = pack([shard], self._placement.packing)
            return
        first = sum(self._part_sizes[:part])
        kept = keep(shard, self._placement) if self._is_kept else shard
        if isinstance(kept, GroupedWeight):
            if self.experts.nbytes == 0 and kept.order is None:
                self.experts = GroupedExperts.empty(*self._shape[:2], kept)
            if isinstance(self.experts, GroupedExperts) and self.experts.takes(kept):
                self.experts.put(expert, first, kept)
                return
            kept = kept.dequantize(self._placement.dtype)
        self._floats()[expert, first : first + kept.shape[0]] = as_floats(
            kept, self._placement.dtype
        )

    def _floats(self) -> torch.Tensor:
        """The experts as floats from now on."""
        experts = self.experts
        if isinstance(experts, torch.Tensor) and experts.nbytes:
            return experts
        floats = self._placement.empty(*self._shape)
        if isinstance(experts, GroupedExperts):
            for expert, matrix in enumerate(floats):
                matrix.copy_(experts.dequantize(expert, self._placement.dtype))
        self.experts = floats
        return floats
