"""Tokens a second of a model with random weights, and what of the GPU's limits that is."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

from pagelet.bench.gpu_check.check import Check
from pagelet.bench.offline.limits import MachineLimits
from pagelet.bench.offline.measure import Sizes, engine_options, measure_core
from pagelet.bench.offline.model_cost import ModelCost
from pagelet.bench.progress import Progress
from pagelet.engine.core.core import EngineCore
from pagelet.engine.executor.inproc import InprocExecutor
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.protocol.config import DType, ModelOptions


def check_throughput(
    device: Literal["cpu", "cuda"],
    name: str,
    config: ModelConfig,
    limits: MachineLimits,
    sizes: Sizes,
    progress: Progress = lambda text: None,
) -> Iterator[Check]:
    """Prefill and decode at each batch size. It fails only if nothing can be measured: what is fast
    enough is for people to judge."""
    kind: DType = "bfloat16" if device == "cuda" else "float32"
    model = ModelOptions(source=name, dtype=kind, load_format="dummy")
    options = engine_options(model, sizes)
    options.device = device
    cost = ModelCost(config, kind, 8.0 * getattr(torch, kind).itemsize)
    executor = InprocExecutor(lambda: ModelRunner(options, config, None, sizes.max_model_len))
    with contextlib.closing(EngineCore(options, executor, sizes.max_model_len)) as core:
        for found in measure_core(core, sizes, cost, limits, progress):
            words = f"{found.tokens_per_second:,.0f} tokens/s"
            if found.step_ms is not None:
                words += f", {found.step_ms:,.2f} ms a step"
            if found.read_bytes is not None and found.read_share is not None:
                words += (
                    f", {found.read_bytes / 1e9:,.0f} GB/s, {100 * found.read_share:.0f} % of the "
                    "rate at which memory was read here"
                )
            if found.gemm_share is not None:
                words += (
                    f", {found.flops / 1e12:,.1f} TFLOP/s, {100 * found.gemm_share:.0f} % of a "
                    "matrix product's"
                )
            yield Check(f"{name}, {found.phase} of {found.batch}", "passed", words)
