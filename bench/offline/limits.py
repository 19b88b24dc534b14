"""What this machine can do at best: bytes read from memory, and multiplications."""

import dataclasses
import time
from collections.abc import Callable

import torch

from pagelet.bench.progress import Progress
from pagelet.kernels.cpu.library import UnavailableError

_READ_BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}
"""Well beyond any cache, and long enough that a GPU's launch does not count."""
_GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class MachineLimits:
    """Measured rates, a second."""

    read_bytes: float
    gemm_flops: dict[str, float]
    """By the type of the numbers: float32, bfloat16, int8; those that torch can multiply here."""

    def gemm(self, kind: str) -> float | None:
        """Of a type of weights: quantised ones are multiplied as int8."""
        return self.gemm_flops.get("int8" if kind in ("int8", "int4") else kind)


def measure_limits(device: torch.device, progress: Progress) -> MachineLimits:
    """Takes some seconds. The best of many runs counts, since other load only slows them."""
    progress("measuring how fast this machine reads memory")
    read_bytes = _read_rate(device)
    flops = {}
    for name, dtype in (
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("int8", torch.int8),
    ):
        progress(f"measuring how fast this machine multiplies {name}")
        rate = _gemm_rate(dtype, device)
        if rate is not None:
            flops[name] = rate
    return MachineLimits(read_bytes, flops)


def _read_rate(device: torch.device) -> float:
    if device.type == "cpu":
        try:
            from pagelet.kernels.cpu.bench import read_bandwidth

            return read_bandwidth(_SECONDS)
        except UnavailableError:
            pass  # torch's sum is close to it, but for the size of memory pages
    num_bytes = _READ_BYTES[device.type]
    data = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    return num_bytes / best_seconds(lambda: data.sum(), device)


def _gemm_rate(dtype: torch.dtype, device: torch.device) -> float | None:
    size = _GEMM_SIZE[device.type]
    shape = (size, size)
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    if dtype == torch.int8:
        matrix = torch.randint(-127, 127, shape, dtype=dtype, device=device)
        multiply = torch._int_mm
    else:
        matrix = torch.randn(shape, device=device).to(dtype)
        multiply = torch.matmul

    def product() -> torch.Tensor:
        return multiply(matrix, matrix)

    try:
        product()
    except RuntimeError:  # this build of torch has none for the type and the device
        return None
    return 2 * size**3 / best_seconds(product, device)


def best_seconds(function: Callable[[], object], device: torch.device) -> float:
    """The shortest of the runs that fit in half a second, of at least five."""
    best = float("inf")
    end = time.perf_counter() + _SECONDS
    runs = 0
    while runs < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
        runs += 1
    return best
