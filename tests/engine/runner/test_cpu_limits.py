"""A rank that shares its machine keeps to its part of the cores and of the memory."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from pagelet.engine.runner import cpu_forward, memory
from pagelet.engine.runner.cpu_forward import limit_threads
from pagelet.engine.runner.memory import read_device_memory
from pagelet.kernels.cpu import library as cpu_library
from pagelet.protocol.config import CpuOptions

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Pretends that there are 16, and sets threads back at the end."""
    monkeypatch.setattr(cpu_forward, "usable_cores", lambda: 16)
    cpu_library.status()  # compiles it, if no test has yet: only then has it threads to limit
    before = torch.get_num_threads()
    yield 16
    torch.set_num_threads(before)
    if cpu_library.status().reason is None:
        cpu_library.library().set_threads(cpu_library.usable_cores())


@pytest.mark.parametrize(
    ("options", "tp_size", "threads"),
    [
        (CpuOptions(share=0.5), 1, 8),
        (CpuOptions(share=1 / 3), 1, 5),
        (CpuOptions(share=1 / 64), 1, 1),
        (CpuOptions(share=0.5, threads=3), 1, 3),
        (CpuOptions(threads=6), 2, 3),
    ],
)
def test_threads_are_a_share_or_as_asked(
    options: CpuOptions, tp_size: int, threads: int, cores: int
) -> None:
    limit_threads(options, tp_size, CPU)
    assert torch.get_num_threads() == threads
    status = cpu_library.status()
    assert status.reason is not None or status.threads == threads


def test_without_limits_threads_stay_as_they_are(cores: int) -> None:
    torch.set_num_threads(1)
    limit_threads(CpuOptions(), 1, CPU)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("options", "total", "free", "remedy"),
    [
        (CpuOptions(), 16 * GIB, 12 * GIB, "Free memory"),
        # Less the weights that are there already.
        (CpuOptions(share=0.25), 4 * GIB, 3 * GIB, "Raise --cpu-share"),
        (CpuOptions(share=0.25, memory_bytes=2 * GIB), 2 * GIB, 1 * GIB, "Raise --cpu-memory"),
        (CpuOptions(memory_bytes=15 * GIB), 15 * GIB, 12 * GIB, "Free memory"),
        (CpuOptions(memory_bytes=GIB // 2), GIB // 2, 0, "Raise --cpu-memory"),
    ],
)
def test_memory_is_a_share_or_as_asked(
    options: CpuOptions, total: int, free: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = dataclasses.replace(memory.read_host_memory(), total=16 * GIB, available=12 * GIB)
    monkeypatch.setattr(memory, "read_host_memory", lambda: host)
    got = read_device_memory(CPU, GIB, options)
    assert (got.total, got.free, got.own, got.remedy) == (total, free, GIB, remedy)
