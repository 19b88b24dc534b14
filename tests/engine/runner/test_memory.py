"""The memory budget: what fits is used, and what does not is answered with what to change."""

import itertools
import re

import pytest
import torch

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.kv.spec import make_layout
from pagelet.engine.runner import memory
from pagelet.engine.runner.kv_pages import PageShape, kv_layout
from pagelet.engine.runner.memory import (
    DeviceMemory,
    OtherNeeds,
    activation_bytes,
    count_blocks,
)
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.protocol.config import CacheOptions
from support.hand_scheduler import HandScheduler
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

GIB, MIB = 1 << 30, 1 << 20
LAYOUT = make_layout([None] * 4, page_bytes=MIB // 4)  # blocks of 1 MiB


def blocks(
    total, free, own=0, activations=0, adapters=0, device="cpu", max_model_len=64, **options
):
    return count_blocks(
        CacheOptions(**options),
        DeviceMemory(total, free, own, " (in use by others: process 7 5.0 MiB)"),
        OtherNeeds(activations, adapters),
        LAYOUT,
        max_model_len,
        device,
    )


def test_layout_has_a_ranks_share_of_the_heads():
    config = tiny_config(tiny_transformers_model("Mistral", sliding_window=9))

    def layout(dtype, tp_size):
        return kv_layout(config, PageShape.of(config, 16, dtype, tp_size))

    assert layout(torch.bfloat16, 1).page_bytes == 2 * 16 * 2 * 8 * 2
    assert layout(torch.float32, 2).page_bytes == 2 * 16 * 1 * 8 * 4
    assert layout(torch.float32, 4).page_bytes == 2 * 16 * 1 * 8 * 4
    assert layout(torch.float32, 1).groups[0].sliding_window == 9


def test_a_share_of_all_memory_less_weights_and_activations():
    got = blocks(10 * GIB, 9 * GIB, GIB, GIB, memory_utilization=0.5)
    assert got == 5 * 1024 - 2 * 1024
    assert blocks(10 * GIB, 9 * GIB, GIB, GIB, device="cuda") == 9 * 1024 - 2 * 1024


def test_never_more_than_is_really_free():
    assert blocks(10 * GIB, 2 * GIB, GIB, GIB, memory_utilization=0.9) == 1024


def test_beside_others_a_gpu_keeps_some_for_what_is_loaded_later():
    assert blocks(10 * GIB, 2 * GIB, GIB, GIB, device="cuda") == 1024 - 256
    case = {"total": 10 * GIB, "free": 2 * GIB, "activations": GIB, "device": "cuda"}
    assert blocks(**case, kv_cache_memory_bytes=768 * MIB) == 768
    with pytest.raises(ConfigurationError, match=r"libraries 256\.0 MiB\. Lower .* to 768 MiB"):
        blocks(**case, kv_cache_memory_bytes=769 * MIB)
    with pytest.raises(ConfigurationError, match="Free memory"):
        blocks(**case | {"free": GIB + 257 * MIB})


def test_on_a_cpu_the_default_is_modest_but_holds_the_longest_request():
    assert blocks(100 * GIB, 90 * GIB) == 4096
    assert blocks(100 * GIB, 90 * GIB, max_model_len=16 * 5000) == 5001
    assert blocks(100 * GIB, 90 * GIB, memory_utilization=0.4) == 40 * 1024


def test_asked_for_sizes_are_exact():
    assert blocks(GIB, GIB, kv_cache_memory_bytes=100 * MIB) == 100
    assert blocks(GIB, 0, num_blocks=7) == 7


def test_a_size_that_does_not_fit_is_told_by_how_much():
    with pytest.raises(ConfigurationError) as caught:
        blocks(GIB, 100 * MIB, activations=30 * MIB, kv_cache_memory_bytes=80 * MIB)
    message = str(caught.value)
    assert "Lower --kv-cache-memory to 70 MiB or less, or lower --max-num-batched" in message
    assert "process 7" in message
    assert blocks(GIB, 100 * MIB, activations=30 * MIB, kv_cache_memory_bytes=70 * MIB) == 70


def test_a_smaller_step_is_advised_only_where_that_is_enough():
    with pytest.raises(ConfigurationError, match=r"to 2\.50 GiB or less$"):
        blocks(4 * GIB, 3 * GIB, activations=GIB // 2, kv_cache_memory_bytes=10 << 40)


def test_where_no_size_fits_none_is_named():
    with pytest.raises(ConfigurationError, match="Free memory, lower --max-num-b") as caught:
        blocks(GIB, 100 * MIB, activations=99 * MIB, kv_cache_memory_bytes=80 * MIB)
    assert "--kv-cache-memory" not in str(caught.value)


def test_a_size_for_nothing_is_told_what_one_longest_request_needs():
    with pytest.raises(ConfigurationError) as caught:
        blocks(GIB, GIB, kv_cache_memory_bytes=1024, max_model_len=65)
    assert "a KV cache of 1.0 KiB holds no tokens" in str(caught.value)
    needed = re.search(r"Give --kv-cache-memory (\d+), or", str(caught.value))
    assert blocks(GIB, GIB, kv_cache_memory_bytes=int(needed[1]), max_model_len=65) == 6


def test_the_utilization_that_the_error_names_is_enough():
    case = {"total": GIB, "free": GIB // 2, "own": 300 * MIB, "activations": 100 * MIB}
    with pytest.raises(ConfigurationError) as caught:
        blocks(**case, memory_utilization=0.3)
    named = re.search(r"Raise --memory-utilization from 0\.3 to (0\.\d+)", str(caught.value))
    assert blocks(**case, memory_utilization=float(named[1])) >= 2


def test_where_nothing_helps_but_less_work_that_is_said():
    with pytest.raises(ConfigurationError, match="Free memory, lower --max-num-batched-tokens"):
        blocks(GIB, 50 * MIB, activations=100 * MIB)


def test_adapters_that_take_the_memory_are_blamed_for_it():
    with pytest.raises(ConfigurationError, match=r"the adapters 80\.0 MiB") as caught:
        blocks(GIB, 50 * MIB, activations=10 * MIB, adapters=80 * MIB)
    assert "Free memory, lower --max-cpu-loras or --max-lora-rank" in str(caught.value)
    case = {"activations": 10 * MIB, "adapters": 40 * MIB}
    with pytest.raises(ConfigurationError, match=r"needs 10\.0 MiB, the adapters 40\.0") as caught:
        blocks(GIB, 100 * MIB, **case, kv_cache_memory_bytes=70 * MIB)
    assert "to 50 MiB or less, or lower --max-cpu-loras" in str(caught.value)
    assert blocks(GIB, 100 * MIB, **case, kv_cache_memory_bytes=50 * MIB) == 50


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 192}


@pytest.mark.parametrize(("kind", "settings"), [("Llama", {}), ("Qwen3Moe", MOE)])
def test_the_largest_step_stays_within_the_formula(kind, settings, monkeypatch):
    monkeypatch.setattr(memory, "_ATTENTION_GATHER_ELEMENTS", 0)  # contexts are short here
    model = tiny_transformers_model(kind, hidden_size=128, intermediate_size=384, **settings)
    options, config = tiny_options(num_blocks=300), tiny_config(model)
    options.scheduler.max_num_seqs = 16
    options.scheduler.max_num_batched_tokens = 16 * 127
    runner = ModelRunner(options, config, None, 128)  # random weights
    hand = HandScheduler(runner.layout, runner.num_blocks, 8)
    for request_id in range(16):
        hand.add(request_id, [request_id] * 127, temperature=1.0, top_p=0.9, logprobs=3)
    with torch.profiler.profile(profile_memory=True) as profiler:
        runner.execute(hand.plan(range(16)))
    sizes = [
        e.nbytes() for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"
    ]
    peak = max(itertools.accumulate(sizes))
    bound = activation_bytes(config, options, 128, torch.float64)
    assert bound / 8 < peak <= bound
