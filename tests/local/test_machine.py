"""GPUs are nobody else's, and shares of the CPU never add up to too much."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.local.machine import (
    Demand,
    Machine,
    choose_gpus,
    crowding,
    next_share,
    this_machine,
    visible_gpus,
)


def test_gpus_are_those_of_the_environment_or_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(tmp_path) == ["0", "2", "10"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8932")
    assert visible_gpus(tmp_path) == ["3", "GPU-8932"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus(tmp_path) == []


def test_a_gpu_is_given_once() -> None:
    assert choose_gpus(2, ["0", "1", "2"], {"1"}) == ["0", "2"]
    assert choose_gpus(2, ["0", "1", "2"], {"1", "2"}) is None
    assert choose_gpus(0, [], set()) == []


@given(st.integers(1, 16))
def test_replicas_that_start_together_have_equal_shares_of_all(count: int) -> None:
    shares: list[float] = []
    for _ in range(count):
        shares.append(next_share(count, shares))
    assert shares == [pytest.approx(1 / count)] * count


@given(st.lists(st.integers(0, 12), max_size=12))
def test_whatever_is_scaled_there_is_room(wanted: list[int]) -> None:
    shares: list[float] = []
    for count in wanted:
        del shares[count:]
        while len(shares) < count:
            shares.append(next_share(count, shares))
            assert shares[-1] > 0
        assert sum(shares) < 2


def test_an_update_has_room_for_whole_shares_beside_the_old_ones() -> None:
    assert next_share(2, [0.5, 0.5]) == 0.5
    assert next_share(1, [1.0]) == 0.5


def test_what_is_beyond_the_machine_is_said_with_both_numbers() -> None:
    machine = Machine(cores=4, memory=8 << 30)
    fits = [Demand("a", 2, 2.0, 4 << 30), Demand("b", 2, 2.0, 4 << 30)]
    assert not list(crowding(fits, machine))
    (cores,) = crowding([*fits, Demand("c", 1, 0.5, 0)], machine)
    assert cores.startswith("a x 2 and b x 2 and c x 1: 4.5 cores are asked for, and ")
    assert "this machine has 4:" in cores
    (memory,) = crowding([Demand("a", 2, 0.0, 9 << 30)], machine)
    assert memory.startswith("a x 2: 9.0 GiB of memory are asked for, and this machine has 8.0 GiB")
    assert len(list(crowding([Demand("a", 5, 5.0, 10 << 30)], machine))) == 2
    here = this_machine()
    assert here.cores >= 1
    assert here.memory > 1 << 30


def test_fields_are_named_only_where_the_file_has_them() -> None:
    machine = Machine(cores=2, memory=8 << 30)
    silent = Demand("a", 3, 3.0, 0)
    simulated = Demand("b", 1, 0.0, 0, cores_field="spec.resources.cpu")
    (words,) = crowding([silent, simulated], machine)
    assert words.endswith("; run fewer replicas")
    (words,) = crowding([silent, Demand("b", 2, 4.0, 0, cores_field="spec.resources.cpu")], machine)
    assert words.endswith("; run fewer replicas, or lower spec.resources.cpu")
