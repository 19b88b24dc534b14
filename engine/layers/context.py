"""What a forward pass needs beside its tokens, passed down explicitly."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch


@dataclasses.dataclass
class AttentionMetadata:
    """The batch as one KV group sees it. Rows are the step's requests, tokens are flat."""

    query_start_loc: torch.Tensor  # [num_reqs + 1] int32, first token of each request
    seq_lens: torch.Tensor  # [num_reqs] int32, context with this step's tokens
    block_table: torch.Tensor  # [num_reqs, max_blocks] int32, padded with the null block 0
    slot_mapping: torch.Tensor  # [num_tokens] int64, where each token's K and V are written
    max_query_len: int
    max_seq_len: int
    query_lens_cpu: Sequence[int]
    seq_lens_cpu: Sequence[int]


@dataclasses.dataclass
class KVBinding:
    """Where one layer's K and V live: its pages and its group's metadata index."""

    cache: torch.Tensor  # [2, num_blocks, num_kv_heads, block_size, head_dim]
    group: int


@dataclasses.dataclass
class ForwardContext:
    """Built once a step by the runner."""

    attention: Sequence[AttentionMetadata]  # one a KV group
    kv: Mapping[int, KVBinding]  # of this rank's layers


@dataclasses.dataclass(frozen=True)
class TensorParallel:
    """This process's place among the tensor-parallel ranks, and the collectives they share.

    `all_reduce` sums in place over the ranks and returns its argument; `all_gather` concatenates
    along the last dimension.
    """

    rank: int
    size: int
    all_reduce: Callable[[torch.Tensor], torch.Tensor]
    all_gather: Callable[[torch.Tensor], torch.Tensor]


SINGLE = TensorParallel(0, 1, lambda x: x, lambda x: x)


def _nobody(x: torch.Tensor) -> None:
    raise AssertionError("a pipeline of one stage has nobody to talk to")


@dataclasses.dataclass(frozen=True)
class PipelineStage:
    """This process's stage of the pipeline, and its way to the neighbours.

    `send` takes a tensor to the next stage, which may be changed as soon as it returns; `receive`
    fills a tensor [num_tokens, hidden_size] with what the stage before sent, in order.
    """

    stage: int = 0
    size: int = 1
    send: Callable[[torch.Tensor], None] = _nobody
    receive: Callable[[torch.Tensor], None] = _nobody

    @property
    def is_first(self) -> bool:
        """Whether token ids come in here."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether tokens are drawn here."""
        return self.stage == self.size - 1


@dataclasses.dataclass(frozen=True)
class Ranks:
    """This process's place among all that hold a part of one copy of the model."""

    tp: TensorParallel = SINGLE
    pp: PipelineStage = PipelineStage()
    expert_parallel: bool = False
    """Whether the tensor-parallel ranks divide the experts among them, in place of each expert."""
    least: Callable[[int], int] = lambda number: number
    """The least of the numbers that all of them give."""


ALONE = Ranks()
