"""What this machine can do at best: bytes read from memory, and multiplications."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

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
    """Takes some seconds. The best of many products counts, since other load only slows them."""
    progress("measuring how fast this machine reads memory")
    read_bytes = ReadMeter(device).rate(_SECONDS)
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


class ReadMeter:
    """Reads memory that is in no cache, with all cores, again and again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._read: Callable[[], object]
        if device.type == "cpu":
            try:
                from pagelet.kernels.cpu.bench import Reader

                self._num_bytes, self._read = Reader.NUM_BYTES, Reader().read
                return
            except UnavailableError:
                pass  # torch's sum is close to it, but for the size of memory pages
        self._num_bytes = _READ_BYTES[device.type]
        data = torch.ones(self._num_bytes // 4, dtype=torch.float32, device=device)
        self._read = data.sum

    def rate(self, seconds: float = 0.1) -> float:
        """Bytes a second, of the median pass: as a step reads, which cannot choose its moment."""
        return self._num_bytes / statistics.median(run_seconds(self._read, self._device, seconds))


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
    return min(run_seconds(function, device, _SECONDS))


def run_seconds(
    function: Callable[[], object], device: torch.device, seconds: float
) -> Iterator[float]:
    """Of each run that fits in a time, and of at least five."""
    end = time.perf_counter() + seconds
    runs = 0
    while runs < 5 or time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        yield time.perf_counter() - begin
        runs += 1
