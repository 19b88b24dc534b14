"""The step that is measured at the start, and who is named where there is no room for it."""

import itertools
import os
import types
from typing import Any

import pynvml
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.kv.spec import make_layout
from pagelet.engine.runner import memory, model_runner
from pagelet.engine.runner.graphs import graph_bytes
from pagelet.engine.runner.memory import out_of_memory_named, read_device_memory
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.runner.worst_step import peak_bytes, warm_up_sizes, worst_step
from pagelet.protocol.config import CpuOptions, EngineOptions, SchedulerOptions
from support.fake_graphs import FakeGraphs
from support.hand_scheduler import HandScheduler
from support.tiny_models import tiny_config, tiny_options, tiny_transformers_model

GIB, MIB = 1 << 30, 1 << 20
GPU = torch.device("cuda", 0)


@given(
    seqs=st.integers(1, 20),
    tokens=st.integers(1, 300),
    length=st.integers(2, 100),
    block_size=st.sampled_from([8, 16]),
    drafts=st.integers(0, 40),
)
def test_it_is_as_large_as_a_step_can_be(
    seqs: int, tokens: int, length: int, block_size: int, drafts: int
) -> None:
    options = SchedulerOptions(max_num_seqs=seqs, max_num_batched_tokens=tokens)
    plan, after = worst_step(options, length, make_layout([None, 9], 1), block_size, drafts)
    requests = min(seqs, tokens)
    assert len(plan.scheduled) == len(plan.new_requests) == requests
    assert plan.num_tokens == min(tokens, requests * (length - 1))
    assert max(entry.num_tokens for entry in plan.scheduled) == min(
        tokens - requests + 1, length - 1
    )
    guesses = sum(len(entry.draft_token_ids) for entry in plan.scheduled)
    assert guesses == min(drafts, plan.num_tokens - requests)
    for entry, data in zip(plan.scheduled, plan.new_requests, strict=True):
        end = entry.num_computed_tokens + entry.num_tokens
        assert 0 <= entry.num_computed_tokens < end == length - 1
        assert entry.samples
        assert len(entry.draft_token_ids) < entry.num_tokens, "one token at least is known"
        assert len(data.token_ids) >= end
        assert all(len(table) * block_size >= end for table in data.block_ids)
    assert sorted(after.dropped_request_ids) == [entry.request_id for entry in plan.scheduled]


def wide_options() -> EngineOptions:
    options = tiny_options(num_blocks=None)  # type: ignore[arg-type]
    options.scheduler.max_num_seqs = 16
    options.scheduler.max_num_batched_tokens = 300
    options.cache.kv_cache_memory_bytes = 4 * MIB
    return options


def peak_of(runner: ModelRunner, plan: Any) -> int:
    with torch.profiler.profile(profile_memory=True) as profiler:
        runner.execute(plan)
    results: Any = profiler.profiler
    events = results.kineto_results.events()
    return max(itertools.accumulate(e.nbytes() for e in events if e.name() == "[memory]"))


def test_no_other_step_needs_more() -> None:
    options = wide_options()
    config = tiny_config(tiny_transformers_model("Llama"))
    runner = ModelRunner(options, config, None, 128)
    plan, after = worst_step(options.scheduler, 128, runner.layout, 8, drafts=5)
    worst = peak_of(runner, plan)
    runner._rows.update(after)
    hand = HandScheduler(runner.layout, runner.num_blocks, 8)
    for request in range(16):
        hand.add(request, [request] * 120, temperature=1.0, top_p=0.9, top_k=7, logprobs=3)
    for parts in ({0: 120, 1: 120}, {2: 30, 3: 100, 4: 100}, list(range(5, 7))):
        assert peak_of(runner, hand.plan(parts)) <= worst


@pytest.mark.parametrize("graphs", [None, FakeGraphs()])
def test_the_cache_gets_what_the_measured_steps_leave(
    graphs: FakeGraphs | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = wide_options()
    options.cuda.cudagraph_capture_sizes = [2, 4]
    options.cache.kv_cache_memory_bytes = None
    options.cache.memory_utilization = 0.75
    config = tiny_config(tiny_transformers_model("Llama"))
    host = types.SimpleNamespace(total=64 * MIB, available=60 * MIB)
    monkeypatch.setattr(memory, "read_host_memory", lambda: host)
    monkeypatch.setattr(model_runner, "measurable", lambda device: True)
    ran = []

    def peak_bytes(function: Any, device: torch.device) -> int:
        function()
        ran.append(device)
        return 20 * MIB if len(ran) == 1 else MIB

    monkeypatch.setattr(model_runner, "peak_bytes", peak_bytes)
    sizes, ends = [], []

    def execute(runner: ModelRunner, plan: Any) -> Any:
        sizes.append(plan.num_tokens)
        ends.append(max(e.num_computed_tokens + e.num_tokens for e in plan.scheduled))
        return runner.launch(plan).result()

    monkeypatch.setattr(ModelRunner, "execute", execute)
    runner = ModelRunner(options, config, None, 128, graphs=graphs)
    most = options.scheduler.max_num_batched_tokens
    assert sizes[0] == most, "the largest step comes first: it may not fit"
    assert sizes[1:] == [*warm_up_sizes(most), 1]
    assert (ends[1], ends[-1]) == (127, 1), "a decode of the longest context, and of the shortest"
    assert {1, 2, 16, most} <= set(sizes)
    assert len(ran) == (1 if graphs is None else 2)
    assert len(runner._rows) == 0, "the rows of the measured step are free"
    room = 48 * MIB - runner._model.weight_bytes - 20 * MIB
    if graphs is not None:
        room -= graph_bytes([2, 4], MIB, 4 * 128 // 8)
    assert runner.num_blocks == room // runner.layout.block_bytes


def test_a_peak_is_what_the_driver_gave_and_not_only_what_tensors_had_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An allocator that takes 20 MiB for a tensor of 12, as torch's does, with 5 MiB cached."""
    now = {"allocated": 3 * MIB, "reserved": 8 * MIB}
    most = dict(now)

    def empty_cache() -> None:
        now["reserved"] = now["allocated"]

    def run() -> None:
        for kind, size in (("allocated", 12 * MIB), ("reserved", 20 * MIB)):
            most[kind] = max(most[kind], now[kind] + size)
            now[kind] += size
        now["allocated"] -= 12 * MIB

    cuda = torch.cuda
    monkeypatch.setattr(cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda device: most.update(now))
    for kind in now:
        monkeypatch.setattr(cuda, f"memory_{kind}", lambda device, kind=kind: now[kind])
        monkeypatch.setattr(cuda, f"max_memory_{kind}", lambda device, kind=kind: most[kind])
    assert peak_bytes(run, GPU) == 20 * MIB
    assert now["reserved"] == 3 * MIB


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A GPU of 80 GiB of which 30 are free and 10 our own; the list is of its processes."""
    users: list[Any] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10 * GIB)
    properties = types.SimpleNamespace(uuid="1-2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: users)
    return users


def test_co_tenants_are_named(gpu: list[Any]) -> None:
    gpu += [
        types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=11 * GIB),
        types.SimpleNamespace(pid=77, usedGpuMemory=38 * GIB),
        types.SimpleNamespace(pid=78, usedGpuMemory=None),
    ]
    found = read_device_memory(GPU, 9 * GIB, CpuOptions())
    assert (found.total, found.free, found.own) == (80 * GIB, 30 * GIB, 10 * GIB)
    assert found.others == " (in use by others: process 77 38.0 GiB, process 78)"


def test_use_by_processes_that_the_driver_hides_is_told(gpu: list[Any]) -> None:
    assert "about 40.0 GiB" in read_device_memory(GPU, GIB, CpuOptions()).others


def test_alone_nobody_is_named(gpu: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 49.5 * GIB)
    assert read_device_memory(GPU, GIB, CpuOptions()).others == ""


def test_what_does_not_fit_says_for_whom_and_what_to_change(gpu: list[Any]) -> None:
    gpu.append(types.SimpleNamespace(pid=77, usedGpuMemory=38 * GIB))
    with (
        pytest.raises(ConfigurationError, match=r"the weights did not fit.*process 77.*Take less"),
        out_of_memory_named(GPU, "the weights", "Take less"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
