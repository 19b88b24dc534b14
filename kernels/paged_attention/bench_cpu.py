"""Speed of paged attention on this CPU beside torch.

`python -m pagelet.kernels.paged_attention.bench_cpu`

Each line is one layer's attention. Times are minima over interleaved repetitions, so that what else
runs on the machine delays both sides alike.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from pagelet.kernels.cpu.library import library
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.paged_attention import torch_native
from pagelet.kernels.paged_attention.cpu import record_paged_attention

BLOCK_SIZE = 16


@dataclasses.dataclass(frozen=True)
class Heads:
    """A model's attention heads."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int


MODELS = (Heads("SmolLM2-135M", 9, 3, 64), Heads("Llama-3.2-1B", 32, 8, 64))


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One shape, in both implementations."""

    name: str
    seconds: float
    torch_seconds: float
    kv_bytes: int
    flop: int

    def __str__(self) -> str:
        per_second = 1e-9 / self.seconds
        return (
            f"{self.name:56} {1e3 * self.seconds:9.3f} ms {self.kv_bytes * per_second:6.1f} GB/s "
            f"{self.flop * per_second:7.1f} GFLOP/s, torch {1e3 * self.torch_seconds:9.3f} ms: "
            f"{self.torch_seconds / self.seconds:5.1f} times as long"
        )


def fastest(functions: list[Callable[[], object]], seconds: float) -> list[float]:
    """The least time of each function, taken in turns for about that long in all."""
    best = [float("inf")] * len(functions)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or best[0] == float("inf"):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def decode(
    heads: Heads, batch: int, context: int, dtype: torch.dtype, seconds: float
) -> Measurement:
    """One new token for each of `batch` requests; blocks anywhere in a cache beyond the L3."""
    blocks_each = -(-context // BLOCK_SIZE)
    shape = (heads.num_kv_heads, BLOCK_SIZE, heads.head_dim)
    block_bytes = 2 * heads.num_kv_heads * BLOCK_SIZE * heads.head_dim * dtype.itemsize
    num_blocks = max(batch * blocks_each, (256 << 20) // block_bytes)
    cache = torch.rand(2, num_blocks, *shape).to(dtype)
    query = torch.rand(batch, heads.num_heads, heads.head_dim).to(dtype)
    starts = torch.arange(batch + 1, dtype=torch.int32)
    seq_lens = torch.full((batch,), context, dtype=torch.int32)
    table = torch.empty(batch, blocks_each, dtype=torch.int32)
    out = torch.empty_like(query)
    scale = heads.head_dim**-0.5
    program = Program()
    record_paged_attention(program, query, cache, starts, seq_lens, table, out, scale=scale)

    def new_blocks() -> None:
        """Other pages each time, as a step's next layer has; no repetition finds them in cache."""
        table.copy_(torch.randperm(num_blocks)[: table.numel()].view(table.shape))

    def ours() -> None:
        program.run(batch)

    def torchs() -> None:
        torch_native.paged_attention(
            query,
            cache,
            starts,
            seq_lens,
            table,
            max_query_len=1,
            max_seq_len=context,
            query_lens_cpu=[1] * batch,
            seq_lens_cpu=[context] * batch,
            scale=scale,
        )

    best = [float("inf"), float("inf")]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or best[0] == float("inf"):
        for i, function in enumerate((ours, torchs)):
            new_blocks()
            best[i] = min(best[i], *fastest([function], 0))
    name = f"decode  {heads.name:14} {str(dtype)[6:]:9} batch {batch:3} context {context:5}"
    tokens = batch * context
    kv_bytes = tokens * 2 * heads.num_kv_heads * heads.head_dim * dtype.itemsize
    flop = 4 * tokens * heads.num_heads * heads.head_dim
    return Measurement(name, best[0], best[1], kv_bytes, flop)


def prefill(heads: Heads, tokens: int, dtype: torch.dtype, seconds: float) -> Measurement:
    """A whole prompt, beside torch's attention over contiguous keys and values."""
    num_blocks = -(-tokens // BLOCK_SIZE)
    cache = torch.rand(2, num_blocks, heads.num_kv_heads, BLOCK_SIZE, heads.head_dim).to(dtype)
    query = torch.rand(tokens, heads.num_heads, heads.head_dim).to(dtype)
    out = torch.empty_like(query)
    program = Program()
    record_paged_attention(
        program,
        query,
        cache,
        torch.tensor([0, tokens], dtype=torch.int32),
        torch.tensor([tokens], dtype=torch.int32),
        torch.randperm(num_blocks, dtype=torch.int32).unsqueeze(0),
        out,
        scale=heads.head_dim**-0.5,
    )
    key, value = torch.rand(2, 1, heads.num_kv_heads, tokens, heads.head_dim).to(dtype)
    heads_first = query.transpose(0, 1).unsqueeze(0)

    def torchs() -> None:
        functional.scaled_dot_product_attention(
            heads_first, key, value, is_causal=True, enable_gqa=True
        )

    best = fastest([lambda: program.run(1), torchs], seconds)
    name = f"prefill {heads.name:14} {str(dtype)[6:]:9} {tokens} tokens"
    pairs = tokens * (tokens + 1) // 2
    kv_bytes = tokens * 2 * heads.num_kv_heads * heads.head_dim * dtype.itemsize
    flop = 4 * pairs * heads.num_heads * heads.head_dim
    return Measurement(name, best[0], best[1], kv_bytes, flop)


def measurements(seconds: float = 1.0) -> Iterator[Measurement]:
    """All shapes, each measured for about that long."""
    for heads in MODELS:
        for dtype in (torch.bfloat16, torch.float32):
            for batch in (1, 8, 32):
                for context in (512, 4096):
                    yield decode(heads, batch, context, dtype, seconds)
            yield prefill(heads, 1024, dtype, seconds)


def main() -> None:
    """Prints a line for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, help="default: the cores that may be used")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each shape")
    options = parser.parse_args()
    if options.threads:
        library().set_threads(options.threads)
    torch.set_num_threads(library().threads)
    print(f"{library().tier}, {library().threads} threads")
    for measurement in measurements(options.seconds):
        print(measurement, flush=True)


if __name__ == "__main__":
    main()
