"""Linear layers whose weights are divided over tensor-parallel ranks (Megatron-LM, arXiv
1909.08053): column parallel divides the output, row parallel the input and sums the results."""

import dataclasses
from collections.abc import Sequence

import torch

from pagelet.engine.layers.context import TensorParallel
from pagelet.engine.layers.linear_weight import LinearWeight
from pagelet.engine.layers.lora import LoraSlot
from pagelet.engine.layers.placement import LoadFunction, Placement, Weight, Weights, load_into
from pagelet.engine.layers.recording import Recorder
from pagelet.engine.layers.tensor_parallel import kv_heads_per_rank
from pagelet.engine.weights.quantized_tensor import StoredTensor
from pagelet.kernels.linear import linear
from pagelet.kernels.linear.cpu import record_linear
from pagelet.kernels.linear.packed import pack_linear


@dataclasses.dataclass(frozen=True)
class Projection:
    """One of the projections that a column-parallel layer computes in one product."""

    name: str
    out_size: int
    local_size: int
    """Output rows on this rank."""
    part: int
    """Which part of `local_size` rows this rank holds."""


class ReplicatedLinear:
    """A linear layer that every rank holds in full."""

    def __init__(self, in_size: int, out_size: int, placement: Placement) -> None:
        self.weight = placement.empty(out_size, in_size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends the layer on x to `out`, computed with the weight as it is."""
        packed = pack_linear(self.weight, "f32" if self.weight.dtype == torch.float32 else "bf16")
        record_linear(recorder.program, x, packed, out)

    def weights(self, prefix: str) -> Weights:
        yield Weight(
            f"{prefix}.weight", tuple(self.weight.shape), load_into(self.weight), self.weight
        )


class ColumnParallelLinear:
    """Projections of one input: [num_tokens, in_size] to this rank's outputs of each of them,
    concatenated in order."""

    def __init__(
        self, in_size: int, projections: Sequence[Projection], bias: bool, placement: Placement
    ) -> None:
        self.projections = projections
        sizes = [p.local_size for p in projections]
        self.weight = LinearWeight(sizes, in_size, placement, placement.packing)
        self.bias = placement.empty(self.out_size) if bias else None
        self.lora = placement.lora_site(sizes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.weight(x, self.bias)
        if self.lora is not None:
            self.lora.add(x, out)
        return out

    @property
    def out_size(self) -> int:
        """Of this rank, all projections together."""
        return sum(p.local_size for p in self.projections)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends the layer on x to `out`."""
        self.weight.record(recorder.program, x, out, self.bias)
        if self.lora is not None:
            self.lora.record(recorder, x, out)

    def weights(self, prefix: str) -> Weights:
        row = 0
        for index, p in enumerate(self.projections):
            yield Weight(
                f"{prefix}.{p.name}.weight",
                (p.out_size, self.weight.in_size),
                self._load_part(index),
                self.weight,
                lora=self._lora_slot(index),
            )
            if self.bias is not None:
                rows = self.bias[row : row + p.local_size]
                load = load_into(rows, 0, p.part)
                yield Weight(f"{prefix}.{p.name}.bias", (p.out_size,), load, self.bias)
            row += p.local_size

    def _lora_slot(self, index: int) -> LoraSlot | None:
        if self.lora is None:
            return None
        size, part = self.projections[index].local_size, self.projections[index].part
        return LoraSlot(self.lora, index, share_b=lambda b: b.narrow(0, part * size, size))

    def _load_part(self, index: int) -> LoadFunction:
        size, part = self.projections[index].local_size, self.projections[index].part

        def load(full: StoredTensor) -> None:
            self.weight.load(index, full.narrow(0, part * size, size))

        return load


class RowParallelLinear:
    """A linear layer over an input of which each rank holds a part; the outputs are summed."""

    def __init__(self, in_size: int, out_size: int, bias: bool, placement: Placement) -> None:
        self.tp = placement.tp
        self.weight = LinearWeight(
            [out_size], placement.share(in_size), placement, placement.packing
        )
        self.bias = placement.empty(out_size) if bias else None
        self.lora = placement.lora_site([out_size])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # One rank adds the bias, so that the sum holds it once.
        bias = self.bias if self.tp.rank == 0 else None
        out = self.weight(x, bias)
        if self.lora is not None:
            self.lora.add(x, out)
        return self.tp.all_reduce(out)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """As `ColumnParallelLinear.record`, and the sum over the ranks."""
        self.weight.record(recorder.program, x, out, self.bias if self.tp.rank == 0 else None)
        if self.lora is not None:
            self.lora.record(recorder, x, out)
        if self.tp.size > 1:
            recorder.call(lambda num_tokens: all_reduce_rows(self.tp, out, num_tokens))

    def weights(self, prefix: str) -> Weights:
        in_size = self.weight.in_size
        shape = self.weight.out_size, in_size * self.tp.size

        def load(full: StoredTensor) -> None:
            self.weight.load(0, full.narrow(1, self.tp.rank * in_size, in_size))

        slot = None
        if self.lora is not None:
            share_a = lambda a: a.narrow(1, self.tp.rank * in_size, in_size)  # noqa: E731
            slot = LoraSlot(self.lora, 0, share_a=share_a)
        yield Weight(f"{prefix}.weight", shape, load, self.weight, lora=slot)
        if self.bias is not None:
            yield Weight(f"{prefix}.bias", shape[:1], load_into(self.bias), self.bias)


def all_reduce_rows(tp: TensorParallel, buffer: torch.Tensor, num_tokens: int) -> None:
    """Sums the first rows of every rank's buffer, in place."""
    rows = buffer[:num_tokens]
    summed = tp.all_reduce(rows)
    if summed is not rows:
        rows.copy_(summed)


def qkv_parallel_linear(
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    bias: bool,
    placement: Placement,
) -> ColumnParallelLinear:
    """Query, key and value projections, divided by heads. When there are more ranks than KV
    heads, neighbouring ranks hold copies of the KV head that their query heads share."""
    tp = placement.tp
    local_heads = placement.share(num_heads)
    local_kv_heads = kv_heads_per_rank(num_kv_heads, tp.size)
    kv_part = tp.rank * num_kv_heads // tp.size if num_kv_heads < tp.size else tp.rank
    return ColumnParallelLinear(
        hidden_size,
        [
            Projection("q_proj", num_heads * head_dim, local_heads * head_dim, tp.rank),
            Projection("k_proj", num_kv_heads * head_dim, local_kv_heads * head_dim, kv_part),
            Projection("v_proj", num_kv_heads * head_dim, local_kv_heads * head_dim, kv_part),
        ],
        bias,
        placement,
    )
