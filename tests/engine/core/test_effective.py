"""What is in force is told in values, not as what was asked for."""

import re

import pytest
import torch

from pagelet.engine.core.core import EngineCore
from pagelet.engine.core.effective import effective_config
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.base import Executor
from pagelet.engine.executor.inproc import InprocExecutor
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.runner.simulated import SimulatedExecutor
from pagelet.protocol.config import (
    EngineOptions,
    KVCacheDType,
    Quantization,
    SimulatedRunnerOptions,
)
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model


def in_force(options: EngineOptions, executor: Executor) -> dict[str, object]:
    core = EngineCore(options, executor, 128)
    try:
        return effective_config(options, core)
    finally:
        core.close()


def flat(config: object, path: str = "") -> dict[str, object]:
    if not isinstance(config, dict):
        return {path: config}
    return {k: v for key, value in config.items() for k, v in flat(value, f"{path}.{key}").items()}


@pytest.mark.parametrize(
    ("dtype", "block_size", "asked", "quantization", "kernels"),
    [
        (
            "float64",
            8,
            "auto",
            "none",
            r"torch operations \(the CPU library computes in float32 .* is float64\)",
        ),
        ("float32", 16, "auto", "none", r"CPU library avx\w+, \d+ threads, linear weights f32"),
        (
            "float32",
            16,
            "int4",
            "int4",
            r"CPU library avx\w+, \d+ threads, linear weights q4 and q8",
        ),
    ],
)
def test_a_loaded_model(
    dtype: str,
    block_size: int,
    asked: Quantization,
    quantization: str,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PAGELET_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    torch.set_num_threads(1)
    options = tiny_options()
    options.device, options.cache.num_blocks = "auto", None
    options.cache.block_size, options.cache.kv_cache_memory_bytes = block_size, 1 << 20
    options.model.dtype, options.model.quantization = "auto", asked
    config = tiny_config(tiny_transformers_model("Llama", intermediate_size=64, torch_dtype=dtype))
    executor = InprocExecutor(lambda: ModelRunner(options, config, None, 128))
    got = flat(in_force(options, executor))
    assert got[".device"] == "cpu"
    assert got[".model.dtype"] == dtype
    assert got[".model.quantization"] == quantization
    assert got[".model.max_model_len"] == 128
    assert got[".cache.num_blocks"] == executor.num_blocks
    assert 0 < int(str(got[".cache.kv_cache_memory_bytes"])) <= 1 << 20
    assert got[".scheduler.max_step_seconds"] == 0.1
    assert re.match(kernels, str(got[".kernels"]))


def test_a_simulated_runner_says_that_it_is_one() -> None:
    options = tiny_options()
    got = in_force(options, SimulatedExecutor(SimulatedRunnerOptions(), 131))
    assert got["device"] == "simulated"
    assert got["kernels"] == "none: the runner is simulated"


@pytest.mark.parametrize(("asked", "token_bytes"), [("auto", 32), ("bfloat16", 16), ("int8", 12)])
def test_the_kv_cache_has_the_dtype_that_was_asked_for(
    asked: KVCacheDType, token_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PAGELET_KERNELS", raising=False)
    torch.set_num_threads(1)
    options = tiny_options(num_blocks=10, load_format="dummy")
    options.cache.block_size, options.cache.kv_cache_dtype = 16, asked
    options.model.dtype = "float32"
    config = tiny_config(tiny_transformers_model("Llama"))
    executor = InprocExecutor(lambda: ModelRunner(options, config, None, 128))
    got = flat(in_force(options, executor))
    assert got[".cache.kv_cache_dtype"] == ("float32" if asked == "auto" else asked)
    elements = 2 * 16 * config.num_kv_heads * config.num_layers * 10
    assert got[".cache.kv_cache_memory_bytes"] == elements * token_bytes * config.head_dim // 8


def test_fp8_weights_are_for_a_gpu() -> None:
    options = tiny_options(load_format="dummy")
    options.model.quantization = "fp8"
    config = tiny_config(tiny_transformers_model("Llama"))
    with pytest.raises(ConfigurationError, match="on a CPU give int8"):
        ModelRunner(options, config, None, 128)


def test_a_kv_cache_dtype_that_only_the_cpu_library_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGELET_KERNELS", "torch")
    options = tiny_options(load_format="dummy")
    options.cache.kv_cache_dtype = "int8"
    config = tiny_config(tiny_transformers_model("Llama"))
    with pytest.raises(ConfigurationError, match="--kv-cache-dtype int8 needs the CPU library"):
        ModelRunner(options, config, None, 128)
