"""One part of the checks, as a program: `python -m pagelet.bench.gpu_check.part PART DEVICE MODEL
[SKIP]` prints what it finds, a JSON object a line, without its first SKIP checks."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, Literal

import torch

from pagelet.bench.gpu_check.check import LOST_DEVICE, Check
from pagelet.bench.gpu_check.collectives import check_all_reduce
from pagelet.bench.gpu_check.graphs import check_graphs
from pagelet.bench.gpu_check.kernels import check_kernels
from pagelet.bench.gpu_check.memory import check_memory
from pagelet.bench.gpu_check.report import read_facts
from pagelet.bench.gpu_check.throughput import check_throughput
from pagelet.bench.offline.limits import measure_limits
from pagelet.bench.offline.measure import Sizes
from pagelet.bench.roofline.presets import find_model
from pagelet.process.proc import set_parent_death_signal
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions

Device = Literal["cpu", "cuda"]
_MAX_MODEL_LEN = 4096


def _facts(device: Device, model: str, skip: int) -> Iterator[Check]:
    for name, value in read_facts().items():
        yield Check(name, "passed", value)


def _kernels(device: Device, model: str, skip: int) -> Iterator[Check]:
    return check_kernels(_first(device), skip=skip)


def _graphs(device: Device, model: str, skip: int) -> Iterator[Check]:
    return check_graphs(device)


def _collectives(device: Device, model: str, skip: int) -> Iterator[Check]:
    return check_all_reduce(device, torch.cuda.device_count() if device == "cuda" else 2)


def _throughput(device: Device, model: str, skip: int) -> Iterator[Check]:
    limits = measure_limits(_first(device), lambda text: None)
    yield Check("memory read", "passed", f"{limits.read_bytes / 1e9:,.0f} GB/s")
    for kind, rate in limits.gemm_flops.items():
        yield Check(f"matrix product, {kind}", "passed", f"{rate / 1e12:,.1f} TFLOP/s")
    sizes = Sizes((1, 8, 64), prompt_len=512, decode_steps=64)
    yield from check_throughput(device, model, find_model(model), limits, sizes)


def _memory(device: Device, model: str, skip: int) -> Iterator[Check]:
    options = EngineOptions(
        model=ModelOptions(source=model, dtype="bfloat16", load_format="dummy"),
        cache=CacheOptions(),
        device=device,
    )
    return check_memory(_first(device), options, find_model("qwen2.5-0.5b"), _MAX_MODEL_LEN)


def _first(device: Device) -> torch.device:
    return torch.device(device, 0) if device == "cuda" else torch.device(device)


PARTS: Final[dict[str, Callable[[Device, str, int], Iterator[Check]]]] = {
    "facts": _facts,
    "kernels": _kernels,
    "graphs": _graphs,
    "collectives": _collectives,
    "throughput": _throughput,
    "memory": _memory,
}


def main(part: str, device: Device, model: str, skip: str = "0") -> int:
    """The exit code: 0 if all checks were made, whatever they found."""
    set_parent_death_signal(os.getppid())
    # What libraries print goes elsewhere.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

        def tell(check: Check) -> None:
            print(json.dumps(dataclasses.asdict(check)), file=out, flush=True)

        try:
            for check in PARTS[part](device, model, int(skip)):
                tell(check)
                if check.status == "failed" and not _usable(device):
                    return LOST_DEVICE
        except Exception as error:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            tell(Check(part, "failed", words[:500]))
    return 0


def _usable(device: Device) -> bool:
    """Whether this process can still compute there: a fault of a kernel is for good."""
    try:
        torch.ones(1, device=_first(device)).item()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))  # type: ignore[arg-type]
