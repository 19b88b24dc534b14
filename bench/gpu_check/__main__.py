"""`make gpu-check`: what of the GPU path holds on this machine, in under 8 minutes."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from pagelet.bench.gpu_check.check import Check, Part, run_parts
from pagelet.bench.gpu_check.collectives import check_all_reduce
from pagelet.bench.gpu_check.graphs import check_graphs
from pagelet.bench.gpu_check.kernels import check_kernels
from pagelet.bench.gpu_check.memory import check_memory
from pagelet.bench.gpu_check.report import update, versions
from pagelet.bench.gpu_check.throughput import check_throughput
from pagelet.bench.offline.limits import measure_limits
from pagelet.bench.offline.measure import Sizes
from pagelet.bench.roofline.presets import PRESETS, find_model
from pagelet.protocol.config import CacheOptions, EngineOptions, ModelOptions

_SECONDS = 390.0
"""After which no part begins any more; the longest takes less than the rest of 8 minutes."""
_MAX_MODEL_LEN = 4096


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 if all passed, 1 if something failed or was not run, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument("--model", default="qwen2.5-3b", choices=sorted(PRESETS))
    parser.add_argument("--output", type=Path, default=Path("docs/gpu-checks.md"))
    options = parser.parse_args(arguments)
    if torch.version.hip or not torch.cuda.is_available():
        print(
            "gpu-check: torch sees no CUDA GPU here, so that there is nothing to see; run it on a "
            "machine with one (`pagelet doctor` says what is missing). Nothing was written",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cuda", 0)
    checks = run_parts(
        _parts(options.model, device), _SECONDS, lambda text: print(text, flush=True)
    )
    before = options.output.read_text() if options.output.is_file() else ""
    name = torch.cuda.get_device_name(device)
    options.output.write_text(update(before, name, _facts(), checks))
    print(f"wrote {options.output}")
    return 0 if all(check.status == "passed" for check in checks) else 1


def _parts(model: str, device: torch.device) -> Iterator[Part]:
    config = find_model(model)
    sizes = Sizes((1, 8, 64), prompt_len=512, decode_steps=64)
    budget = EngineOptions(
        model=ModelOptions(source=model, dtype="bfloat16", load_format="dummy"),
        cache=CacheOptions(),
        device="cuda",
    )

    def throughput() -> Iterator[Check]:
        limits = measure_limits(device, lambda text: None)
        yield Check("memory read", "passed", f"{limits.read_bytes / 1e9:,.0f} GB/s")
        for kind, rate in limits.gemm_flops.items():
            yield Check(f"matrix product, {kind}", "passed", f"{rate / 1e12:,.0f} TFLOP/s")
        yield from check_throughput("cuda", model, config, limits, sizes)

    yield Part("kernels against references", lambda: check_kernels(device))
    yield Part("CUDA graphs against single launches", lambda: check_graphs("cuda"))
    yield Part("collectives", lambda: check_all_reduce("cuda", torch.cuda.device_count()))
    yield Part("throughput", throughput)
    small = find_model("qwen2.5-0.5b")
    yield Part("memory budget", lambda: check_memory(device, budget, small, _MAX_MODEL_LEN))


def _facts() -> dict[str, str]:
    import pynvml

    pynvml.nvmlInit()
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return versions(pynvml.nvmlSystemGetDriverVersion(), str(torch.version.cuda), nccl)


if __name__ == "__main__":
    raise SystemExit(main())
