"""The memory budget beside another process on the same GPU."""

import contextlib
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator

import torch

from pagelet.bench.gpu_check.check import Check
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.runner.worst_step import worst_step
from pagelet.protocol.config import EngineOptions

_SHARE = 0.4
"""Of the GPU's free memory, that the other process takes."""
_HOLD = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device=sys.argv[2])
held.zero_()
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def co_tenant(num_bytes: int, device: torch.device) -> Iterator[int]:
    """Another process that holds so much of the GPU; yields its pid. It ends with its standard
    input, so that it does not outlive this process."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(num_bytes), str(device)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "held":
                raise RuntimeError("the other process could not take its memory")
            yield process.pid
        finally:
            process.stdin.close()
            process.wait()


def check_memory(
    device: torch.device, options: EngineOptions, config: ModelConfig, max_model_len: int
) -> Iterator[Check]:
    """With another process on the GPU: what fits runs, and what does not names that process."""

    def make(kv_cache_memory_bytes: int | None) -> ModelRunner:
        options.cache.num_blocks = None
        options.cache.memory_utilization = 0.95
        options.cache.kv_cache_memory_bytes = kv_cache_memory_bytes
        return ModelRunner(options, config, None, max_model_len)

    _give_back()  # what the checks before have left
    free, total = torch.cuda.mem_get_info(device)
    with co_tenant(int(free * _SHARE), device) as pid:
        yield refusal(lambda: make(total), pid)
        _give_back()
        runner = make(None)
        left, _ = torch.cuda.mem_get_info(device)
        yield largest_step(runner, options, max_model_len)
        after, _ = torch.cuda.mem_get_info(device)
        yield Check(
            "memory left beside a co-tenant",
            "passed" if after > 0 else "failed",
            f"of {total / 1e9:,.1f} GB the other process has {free * _SHARE / 1e9:,.1f} GB, the KV "
            f"cache {runner.num_blocks * runner.layout.block_bytes / 1e9:,.1f} GB; "
            f"{left / 1e9:,.2f} GB are free once it is there, {after / 1e9:,.2f} GB after the "
            "largest step",
        )


def _give_back() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def refusal(make: Callable[[], object], pid: int) -> Check:
    """Whether more than there is is refused, and who uses the rest named."""
    name = "a KV cache that does not fit"
    try:
        make()
    except ConfigurationError as error:
        words = str(error)
        # In a container the driver may not know the process by the pid that it has in there.
        named = f"process {pid} " in words or "in use by others" in words
        return Check(name, "passed" if named else "failed", f"refused: {words}")
    return Check(name, "failed", "was not refused")


def largest_step(runner: ModelRunner, options: EngineOptions, max_model_len: int) -> Check:
    """Whether the step that was measured before the KV cache was made still fits beside it."""
    plan, _ = worst_step(options.scheduler, max_model_len, runner.layout, options.cache.block_size)
    result = runner.execute(plan)
    broken = [found.error for found in result.sampled if found.error is not None]
    return Check(
        "the largest step beside a full budget",
        "failed" if broken else "passed",
        broken[0] if broken else f"{plan.num_tokens:,} tokens, {len(result.sampled):,} requests",
    )
