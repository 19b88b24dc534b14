"""All-reduce over the GPUs that are there: NCCL between them, gloo between CPU processes.

As a program it is one rank: `python -m pagelet.bench.gpu_check.collectives DEVICE RANK SIZE FILE
ELEMENTS`; the first one prints the seconds that an all-reduce took.
"""

import datetime
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from pagelet.bench.gpu_check.check import Check

_ROUNDS = 10
_TIMEOUT_SECONDS = 60


def check_all_reduce(
    device: Literal["cpu", "cuda"], size: int, elements: int = 1 << 24
) -> Iterator[Check]:
    """Sums float32 numbers over `size` ranks, a process and a GPU each."""
    backend = "NCCL" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "pagelet.bench.gpu_check.collectives", device),
                    *(str(rank), str(size), str(Path(folder) / "rendezvous"), str(elements)),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            ended = [rank.communicate(timeout=2 * _TIMEOUT_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    name = f"{backend} all-reduce over {size}"
    for rank, (_, errors) in zip(ranks, ended, strict=True):
        if rank.returncode:
            yield Check(name, "failed", " ".join(errors.split())[-300:])
            return
    seconds = float(ended[0][0])
    num_bytes = 4 * elements
    # As nccl-tests count it: what crosses each rank's links.
    bus = 2 * (size - 1) / size * num_bytes / seconds
    yield Check(
        name,
        "passed",
        f"{num_bytes / 1e6:,.0f} MB in {seconds * 1e3:,.2f} ms"
        + (f", {bus / 1e9:,.1f} GB/s over the links of each" if size > 1 else ", within one GPU"),
    )


def _rank(device: str, rank: int, size: int, rendezvous: str, elements: int) -> None:
    place = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=_TIMEOUT_SECONDS),
    )
    best = float("inf")
    for _ in range(_ROUNDS):
        values = torch.full((elements,), float(rank + 1), device=place)
        _wait(place)
        began = time.perf_counter()
        dist.all_reduce(values)
        _wait(place)
        best = min(best, time.perf_counter() - began)
        expected = size * (size + 1) / 2
        if not bool((values == expected).all()):
            raise SystemExit(f"rank {rank} has a wrong sum: {float(values[0])}, not {expected}")
    if rank == 0:
        print(best)
    dist.destroy_process_group()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    _rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
