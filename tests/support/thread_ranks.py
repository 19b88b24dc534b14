"""Ranks of one copy of the model as threads, for tests of what each of them computes."""

import queue
import threading

import torch

from pagelet.engine.layers.context import PipelineStage, Ranks, TensorParallel


class ThreadGroup:
    """Collectives between threads: everyone lays down a copy, all read, all leave."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=30)
        self.parts: list[torch.Tensor] = [torch.empty(0)] * size

    def rank(self, rank: int) -> TensorParallel:
        def exchange(x: torch.Tensor) -> list[torch.Tensor]:
            self.parts[rank] = x.clone()
            self.barrier.wait()
            parts = list(self.parts)
            self.barrier.wait()
            return parts

        def all_reduce(x: torch.Tensor) -> torch.Tensor:
            return x.copy_(torch.stack(exchange(x)).sum(0))

        def all_gather(x: torch.Tensor) -> torch.Tensor:
            return torch.cat(exchange(x), dim=-1)

        return TensorParallel(rank, self.size, all_reduce, all_gather)


def thread_ranks(tp_size: int, pp_size: int, *, expert_parallel: bool = False) -> list[Ranks]:
    """Stages of tensor-parallel groups, with a queue from each rank to the one behind it."""
    groups = [ThreadGroup(tp_size) for _ in range(pp_size)]
    ways: dict[tuple[int, int], queue.Queue[torch.Tensor]] = {
        (stage, rank): queue.Queue() for stage in range(pp_size) for rank in range(tp_size)
    }

    def place(stage: int, rank: int) -> Ranks:
        pp = PipelineStage(
            stage,
            pp_size,
            lambda x: ways[stage, rank].put(x.clone()),
            lambda x: x.copy_(ways[stage - 1, rank].get(timeout=30)),
        )
        return Ranks(groups[stage].rank(rank), pp, expert_parallel)

    return [place(stage, rank) for stage in range(pp_size) for rank in range(tp_size)]
