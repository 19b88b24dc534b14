"""The ranks' collectives on torch.distributed: NCCL between CUDA GPUs, which is RCCL on ROCm, and
gloo between CPU processes. Nothing else in the engine knows of torch.distributed."""

from collections import deque

import torch
import torch.distributed as dist

from pagelet.engine.executor.progress import Progress
from pagelet.engine.executor.topology import RankPlace
from pagelet.engine.layers.context import PipelineStage, Ranks, TensorParallel

_SENDS_UNDER_WAY = 4
"""Two steps' states: a stage that is further ahead of the next one waits for it."""


def join_ranks(
    place: RankPlace,
    rendezvous: str,
    device: torch.device,
    progress: Progress,
    *,
    expert_parallel: bool = False,
) -> Ranks:
    """Waits until all ranks are there. `rendezvous` is a URL that all of them share and that is
    used once: a file's on one machine, which spares a port that another process could take first.
    `progress` is told when this rank waits for others, but not of the seconds that NCCL takes to
    connect them, which are over when this returns.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=rendezvous, rank=place.rank, world_size=place.size)
    # Every rank has to take part in making every group.
    stages = [
        dist.new_group(list(range(stage * place.tp_size, (stage + 1) * place.tp_size)))
        for stage in range(place.pp_size)
    ]
    tp = _tensor_parallel(place, stages[place.stage], progress)
    pp = _pipeline_stage(place, progress)
    if place.tp_size > 1:
        _connect(stages[place.stage], device)
    _connect(None, device)

    def least(number: int) -> int:
        value = torch.tensor([number], device=device)
        with progress.being("the other ranks' start"):
            dist.all_reduce(value, op=dist.ReduceOp.MIN)
        return int(value)

    return Ranks(tp, pp, expert_parallel, least)


def _connect(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """NCCL connects the ranks of a group (None: all of them) in its first collective, in which the
    host waits: in a layer's it would be taken for ranks that wait for one another in vain."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _tensor_parallel(
    place: RankPlace, group: dist.ProcessGroup, progress: Progress
) -> TensorParallel:
    size = place.tp_size
    if size == 1:
        return TensorParallel(0, 1, lambda x: x, lambda x: x)

    def all_reduce(x: torch.Tensor) -> torch.Tensor:
        with progress.being("all_reduce"):
            dist.all_reduce(x, group=group)
        return x

    def all_gather(x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size)]
        with progress.being("all_gather"):
            dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=-1)

    return TensorParallel(place.tp_rank, size, all_reduce, all_gather)


def _pipeline_stage(place: RankPlace, progress: Progress) -> PipelineStage:
    """States are whole on every tensor-parallel rank, so each has one neighbour on either side."""
    before, after = place.rank - place.tp_size, place.rank + place.tp_size
    under_way: deque[tuple[dist.Work, torch.Tensor]] = deque()

    def send(x: torch.Tensor) -> None:
        while len(under_way) >= _SENDS_UNDER_WAY:
            with progress.being(f"rank {after} to receive"):
                under_way.popleft()[0].wait()
        copy = x.clone()
        work = dist.isend(copy, after)
        assert work is not None
        under_way.append((work, copy))

    def receive(x: torch.Tensor) -> None:
        with progress.being(f"rank {before} to send"):
            dist.recv(x, before)

    return PipelineStage(place.stage, place.pp_size, send, receive)
