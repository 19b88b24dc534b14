"""What a CPU's library cannot run: refused where an option asks for it, and told of otherwise."""

import logging
import re

import pytest
import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.kernels.cpu.library import status
from pagelet.protocol.config import DType
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

pytestmark = pytest.mark.skipif(status().reason is not None, reason="no CPU library here")


@pytest.fixture(autouse=True)
def no_choice_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGELET_KERNELS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def load(block_size: int, dtype: DType, head_dim: int = 16) -> ModelRunner:
    options = tiny_options(load_format="dummy")
    options.cache.block_size = block_size  # type: ignore[assignment]
    options.model.dtype = dtype
    config = tiny_config(tiny_transformers_model("Llama", head_dim=head_dim))
    return ModelRunner(options, config, None, 128)


def test_small_blocks_are_refused_where_the_library_would_run_the_model() -> None:
    with pytest.raises(ConfigurationError, match=r"--block-size 8 is for a GPU.* multiple of 16"):
        load(8, "float32")
    load(8, "float64")  # torch's operations run it with any blocks


@pytest.mark.parametrize(
    ("dtype", "head_dim", "words"),
    [
        ("float16", 16, r"float32 and bfloat16, and --dtype is float16\)"),
        ("float64", 16, r"and --dtype is float64\)"),
        ("float32", 12, r"head_dim 12 is not a multiple of 8"),
        ("float32", 264, r"head_dim 264 is not a multiple of 8 up to 256"),
        ("float32", 16, None),
    ],
)
def test_what_torch_runs_on_a_cpu_is_warned_of(
    dtype: DType, head_dim: int, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pagelet.engine.runner"):
        runner = load(16, dtype, head_dim)
    assert runner.info.kernels.startswith("CPU library" if words is None else "torch operations")
    if words is None:
        assert not caplog.messages
    else:
        [message] = caplog.messages
        assert "may change its answer" in message
        assert re.search(words, message)
