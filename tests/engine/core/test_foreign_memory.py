"""GPU memory that is not the engine's, by a driver that is a fake: no GPU is needed."""

import itertools
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pagelet.engine.core.foreign_memory import ForeignMemory, read_foreign_memory, read_in_use
from pagelet.protocol.config import EngineOptions, ModelOptions, ParallelOptions

GIB = 1 << 30
MODEL = ModelOptions(source="none")


class FakeDriver(types.ModuleType):
    """Stands for `pynvml`, with GPUs of these UUIDs, of which so much is in use."""

    nvmlMemory_v2 = 2

    class NVMLError(Exception):
        pass

    def __init__(self, used: dict[str, int]) -> None:
        super().__init__("pynvml")
        self.used = used
        self.is_there = True
        self.has_v2 = True
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.is_there:
            raise self.NVMLError("no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return list(self.used)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int = 1) -> Any:
        if version == self.nvmlMemory_v2 and not self.has_v2:
            raise self.NVMLError("not supported")
        reserved = 0 if version == self.nvmlMemory_v2 else GIB // 2
        return types.SimpleNamespace(used=self.used[handle] + reserved)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Of a machine with three GPUs."""
    fake = FakeDriver({"GPU-aa": GIB, "GPU-bb": 2 * GIB, "GPU-cc": 3 * GIB})
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.mark.parametrize(
    ("chosen", "ranks", "gpus"),
    [
        (None, 1, ["GPU-aa"]),
        (None, 2, ["GPU-aa", "GPU-bb"]),
        ("2,0", 2, ["GPU-cc", "GPU-aa"]),
        ("GPU-b, 0", 2, ["GPU-bb", "GPU-aa"]),
        ("1,7,0", 3, ["GPU-bb"]),  # as CUDA, which stops at what there is not
        ("", 1, []),
    ],
)
def test_the_gpus_of_the_engine_are_those_that_it_sees_first(
    driver: FakeDriver, chosen: str | None, ranks: int, gpus: list[str]
) -> None:
    options = EngineOptions(model=MODEL, parallel=ParallelOptions(tensor_parallel_size=ranks))
    environment = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert read_in_use(options, environment) == {gpu: driver.used[gpu] for gpu in gpus}
    assert driver.open == 0


def test_an_engine_without_gpus_has_none_to_tell_of(driver: FakeDriver) -> None:
    assert read_in_use(EngineOptions(model=MODEL, device="cpu"), {}) == {}
    assert read_in_use(EngineOptions(model=MODEL, runner="simulated"), {}) == {}
    driver.is_there = False
    assert read_in_use(EngineOptions(model=MODEL), {}) == {}


def test_an_old_driver_counts_what_it_keeps_for_itself(driver: FakeDriver) -> None:
    driver.has_v2 = False
    assert read_in_use(EngineOptions(model=MODEL), {}) == {"GPU-aa": GIB + GIB // 2}


def measured(tmp_path: Path, *used: int) -> tuple[ForeignMemory, str]:
    """On one GPU, of which that much is in use, one reading after the other."""
    path = str(tmp_path / "beat")
    readings = ({"GPU-aa": each} for each in itertools.chain(used, itertools.repeat(used[-1])))
    return ForeignMemory(path, lambda: next(readings)), path


def test_what_is_in_use_before_the_model_is_loaded_is_others(tmp_path: Path) -> None:
    foreign, path = measured(tmp_path, 3 * GIB, 43 * GIB)
    assert read_foreign_memory(path) == {"GPU-aa": 3 * GIB}
    assert foreign.measure() == {"GPU-aa": 3 * GIB}, "also while it is being loaded"
    foreign.loaded(held=39 * GIB, reserve=2 * GIB)
    assert foreign.measure() == {"GPU-aa": 3 * GIB}
    foreign.close()
    assert read_foreign_memory(path) == {"GPU-aa": 3 * GIB}


@pytest.mark.parametrize(
    ("later", "others"),
    [(45, 3), (46, 4), (60, 18), (42, 2), (40, 0), (10, 0)],
    ids=["a step's", "more than a step's", "a lot", "less", "none", "ours is gone too"],
)
def test_a_change_that_no_step_makes_is_others(tmp_path: Path, later: int, others: int) -> None:
    foreign, _ = measured(tmp_path, 3 * GIB, 43 * GIB, later * GIB)
    foreign.loaded(held=39 * GIB, reserve=2 * GIB)
    assert foreign.measure() == {"GPU-aa": others * GIB}
    foreign.close()


def test_what_an_engine_before_left_for_a_moment_is_not_others(tmp_path: Path) -> None:
    foreign, _ = measured(tmp_path, 41 * GIB, 42 * GIB)  # it was killed, and is not gone yet
    foreign.loaded(held=40 * GIB, reserve=0)
    assert foreign.measure() == {"GPU-aa": 2 * GIB}, "what is in use beside what we hold"
    foreign.close()


def test_without_gpus_there_is_nothing_to_read(tmp_path: Path) -> None:
    path = str(tmp_path / "beat")
    foreign = ForeignMemory(path, dict)
    foreign.loaded(held=0, reserve=0)
    foreign.close()
    assert read_foreign_memory(path) == {}
    assert list(tmp_path.iterdir()) == []
