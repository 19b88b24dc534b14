"""Rates of the linear layer and of a mixture's experts on this machine, beside torch's.

    python -m pagelet.kernels.cpu.bench [--size 2048] [--seconds 0.5]

One row is bound by memory: GB/s of weights that are in no cache, and their share of what this
machine reads at best. Many rows are bound by arithmetic: GFLOP/s. There are 64 experts of half the
size, of which a row takes 8. Each figure is the best of many short runs, ours and torch's in turn,
so that other load on the machine hides neither.
"""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable

import torch

from pagelet.kernels.cpu.library import library
from pagelet.kernels.cpu.memory import empty_bytes
from pagelet.kernels.cpu.program import Program
from pagelet.kernels.linear.cpu import record_linear
from pagelet.kernels.linear.packed import LinearFormat, pack_linear
from pagelet.kernels.moe import torch_native
from pagelet.kernels.moe.cpu import pack_experts, record_moe

FORMATS: tuple[LinearFormat, ...] = ("f32", "bf16", "q8", "q4")
NUM_EXPERTS, TOP_K = 64, 8
OUT_OF_CACHE = 160 << 20  # bytes of weights that take turns
SHORT_RUN = 8 << 20  # bytes read between two looks at the clock


def best_seconds(functions: list[Callable[[], object]], seconds: float) -> list[float]:
    """The shortest run of each function; they take turns for the given time."""
    best = [float("inf")] * len(functions)
    end = time.perf_counter() + seconds * len(functions)
    runs = 0
    while runs < 3 or time.perf_counter() < end:
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
        runs += 1
    return best


class Reader:
    """Reads with all threads together."""

    NUM_BYTES = OUT_OF_CACHE

    def __init__(self) -> None:
        """Raises `UnavailableError` where the library cannot be."""
        library()
        self._memory = empty_bytes(OUT_OF_CACHE).fill_(1)

    def read(self) -> None:
        """Once over the memory."""
        library().read(self._memory.data_ptr(), OUT_OF_CACHE)

    def best_rate(self, seconds: float) -> float:
        """Bytes a second, of the best of many short runs."""
        starts = itertools.cycle(range(0, OUT_OF_CACHE, SHORT_RUN))

        def read() -> None:
            library().read(self._memory.data_ptr() + next(starts), SHORT_RUN)

        return SHORT_RUN / best_seconds([read], seconds)[0]


def measure(
    format: LinearFormat, rows: int, size: int, seconds: float, cached: bool
) -> tuple[float, float, int]:
    """Seconds of one product of ours and of torch's, and the bytes of the packed weight. Unless
    they may stay in cache, weights of [size, size] take turns."""
    dtype = torch.float32 if format == "f32" else torch.bfloat16
    x, out = torch.randn(rows, size).to(dtype), torch.empty(rows, size, dtype=dtype)
    weight = torch.randn(size, size).to(dtype)
    packed = pack_linear(weight, format)
    copies = 1 if cached else 1 + OUT_OF_CACHE // packed.nbytes
    programs = []
    for _ in range(copies):
        program = Program()
        copy = dataclasses.replace(packed, data=empty_bytes(packed.nbytes).copy_(packed.data))
        record_linear(program, x, copy, out)
        programs.append(program)
    ours = itertools.cycle(programs)
    theirs = itertools.cycle(
        [weight.clone() for _ in range(1 if cached else 1 + OUT_OF_CACHE // weight.nbytes)]
    )
    best = best_seconds(
        [
            lambda: next(ours).run(rows),
            lambda: torch.nn.functional.linear(x, next(theirs)),
        ],
        seconds,
    )
    return best[0], best[1], packed.nbytes


def measure_experts(format: LinearFormat, rows: int, size: int, seconds: float) -> list[float]:
    """Seconds of one mixture of ours and of torch's on bfloat16 weights, or float32 for "f32"."""
    dtype = torch.float32 if format == "f32" else torch.bfloat16
    hidden, intermediate = size // 2, size // 4
    x, out = torch.randn(2, rows, hidden).to(dtype)
    gate_up = (torch.randn(NUM_EXPERTS, 2 * intermediate, hidden) * hidden**-0.5).to(dtype)
    down = (torch.randn(NUM_EXPERTS, hidden, intermediate) * intermediate**-0.5).to(dtype)
    experts = pack_experts(gate_up, down, [format])
    # Rows of other runs take other experts, whose weights are in no cache.
    logits = torch.randn(8, rows, NUM_EXPERTS).to(dtype)
    programs = []
    for of_run in logits:
        programs.append(Program())
        record_moe(programs[-1], x, of_run, experts, out, TOP_K, renormalize=True)
    ours, theirs = itertools.cycle(programs), itertools.cycle(logits)
    return best_seconds(
        [
            lambda: next(ours).run(rows),
            lambda: torch_native.moe(x, next(theirs), gate_up, down, TOP_K, True),
        ],
        seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=2048, help="inputs and outputs of a layer")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement")
    options = parser.parse_args()
    torch.set_num_threads(library().threads)

    bandwidth = Reader().best_rate(options.seconds)
    print(f"{library().tier}, {library().threads} threads, reads {bandwidth / 1e9:.1f} GB/s")
    columns = ("rows", "ms", "GB/s", "of read", "GFLOP/s", "x torch")
    print("format" + "".join(f"{column:>9}" for column in columns))
    for format in FORMATS:
        for rows in (1, 4, 16, 64, 256):
            ours, theirs, nbytes = measure(format, rows, options.size, options.seconds, rows > 1)
            rate, flops = nbytes / ours, 2 * rows * options.size**2 / ours
            figures = (
                f"{rows}",
                f"{ours * 1e3:.3f}",
                f"{rate / 1e9:.1f}",
                f"{rate / bandwidth:.0%}" if rows == 1 else "",
                f"{flops / 1e9:.0f}",
                f"{theirs / ours:.2f}",
            )
            print(f"{format:6}" + "".join(f"{figure:>9}" for figure in figures), flush=True)
    print("experts" + "".join(f"{column:>9}" for column in ("rows", "ms", "x torch")))
    for format in FORMATS:
        for rows in (1, 4, 16, 64):
            ours, theirs = measure_experts(format, rows, options.size, options.seconds)
            print(f"{format:7}{rows:9}{ours * 1e3:9.3f}{theirs / ours:9.2f}", flush=True)


if __name__ == "__main__":
    main()
