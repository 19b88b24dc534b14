"""The ranks' collectives on torch.distributed: NCCL between GPUs, gloo between CPU processes."""

import torch
import torch.distributed as dist

from pagelet.engine.layers.context import TensorParallel


def join_ranks(rank: int, size: int, rendezvous: str, device: torch.device) -> TensorParallel:
    """Waits until all ranks are there. `rendezvous` is a path that all of them share and that is
    used once; it spares a port that another process could take first."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=size)

    def all_reduce(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    def all_gather(x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    return TensorParallel(rank, size, all_reduce, all_gather)
