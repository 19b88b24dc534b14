"""Linear layers whose weights are divided over tensor-parallel ranks (Megatron-LM, arXiv
1909.08053): column parallel divides the output, row parallel the input and sums the results."""

import dataclasses
from collections.abc import Sequence

import torch

from pagelet.engine.layers.context import TensorParallel
from pagelet.engine.layers.placement import Placement, Weight, Weights, load_into
from pagelet.engine.layers.recording import Recorder
from pagelet.engine.layers.tensor_parallel import kv_heads_per_rank
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

    def weights(self, prefix: str) -> Weights:
        yield Weight(f"{prefix}.weight", tuple(self.weight.shape), load_into(self.weight))


class ColumnParallelLinear:
    """Projections of one input: [num_tokens, in_size] to this rank's outputs of each of them,
    concatenated in order."""

    def __init__(
        self, in_size: int, projections: Sequence[Projection], bias: bool, placement: Placement
    ) -> None:
        self.projections = projections
        self.weight = placement.empty(sum(p.local_size for p in projections), in_size)
        self.bias = placement.empty(self.weight.shape[0]) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)

    @property
    def out_size(self) -> int:
        """Of this rank, all projections together."""
        return sum(p.local_size for p in self.projections)

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """Appends the product, with the weight packed in place of the one that it had."""
        packed = pack_linear(self.weight, recorder.linear_format)
        self.weight = self.weight.new_empty(0, 0)
        record_linear(recorder.program, x, packed, out, self.bias)

    def weights(self, prefix: str) -> Weights:
        row = 0
        for p in self.projections:
            rows = slice(row, row + p.local_size)
            yield Weight(
                f"{prefix}.{p.name}.weight",
                (p.out_size, self.weight.shape[1]),
                load_into(self.weight[rows], 0, p.part),
            )
            if self.bias is not None:
                yield Weight(
                    f"{prefix}.{p.name}.bias", (p.out_size,), load_into(self.bias[rows], 0, p.part)
                )
            row += p.local_size


class RowParallelLinear:
    """A linear layer over an input of which each rank holds a part; the outputs are summed."""

    def __init__(self, in_size: int, out_size: int, bias: bool, placement: Placement) -> None:
        self.tp = placement.tp
        self.weight = placement.empty(out_size, placement.share(in_size))
        self.bias = placement.empty(out_size) if bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # One rank adds the bias, so that the sum holds it once.
        bias = self.bias if self.tp.rank == 0 else None
        return self.tp.all_reduce(linear(x, self.weight, bias))

    def record(self, recorder: Recorder, x: torch.Tensor, out: torch.Tensor) -> None:
        """As `ColumnParallelLinear.record`, and the sum over the ranks."""
        packed = pack_linear(self.weight, recorder.linear_format)
        self.weight = self.weight.new_empty(0, 0)
        record_linear(recorder.program, x, packed, out, self.bias if self.tp.rank == 0 else None)
        if self.tp.size > 1:
            recorder.call(lambda num_tokens: all_reduce_rows(self.tp, out, num_tokens))

    def weights(self, prefix: str) -> Weights:
        out_size, local_in = self.weight.shape
        yield Weight(
            f"{prefix}.weight",
            (out_size, local_in * self.tp.size),
            load_into(self.weight, 1, self.tp.rank),
        )
        if self.bias is not None:
            yield Weight(f"{prefix}.bias", (out_size,), load_into(self.bias))


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
