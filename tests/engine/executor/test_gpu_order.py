"""Ranks take GPUs by the links between them, on machines that are made up."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.executor.gpu_order import (
    NVLINK,
    gpus_by_rank,
    is_ordered_by_hand,
    read_links,
)


def links(num_gpus: int, groups: list[set[int]], inside: int, outside: int) -> list[list[int]]:
    """`inside` between GPUs of one of `groups`, `outside` between others."""
    together = lambda a, b: any({a, b} <= group for group in groups)  # noqa: E731
    return [
        [inside if a == b or together(a, b) else outside for b in range(num_gpus)]
        for a in range(num_gpus)
    ]


def test_pairs_with_a_bridge_are_neighbours() -> None:
    """As cards with bridges in slots that alternate between processors."""
    machine = links(4, [{0, 2}, {1, 3}], NVLINK, 0)
    assert gpus_by_rank(machine, 2) == [0, 2, 1, 3]


def test_four_of_eight_stay_on_their_processor() -> None:
    machine = links(8, [{0, 3, 5, 6}, {1, 2, 4, 7}], 20, 0)
    assert gpus_by_rank(machine, 4) == [0, 3, 5, 6, 1, 2, 4, 7]


def test_stages_follow_one_another_by_the_better_link() -> None:
    """Three pairs, of which the first is nearer to the third."""
    machine = links(6, [{0, 1}, {2, 3}, {4, 5}], NVLINK, 0)
    for a, b in ((0, 4), (1, 4), (0, 5), (1, 5)):
        machine[a][b] = machine[b][a] = 30
    assert gpus_by_rank(machine, 2) == [0, 1, 4, 5, 2, 3]


@given(st.integers(1, 16), st.integers(1, 16), st.integers(0, 100))
def test_equal_links_keep_the_order(num_gpus: int, group_size: int, link: int) -> None:
    machine = [[link] * num_gpus for _ in range(num_gpus)]
    assert gpus_by_rank(machine, group_size) == list(range(num_gpus))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_groups_that_exist_are_found(count: int, size: int, seed: int) -> None:
    """However their GPUs are numbered; and every GPU is taken once."""
    gpus = list(range(count * size))
    random.Random(seed).shuffle(gpus)
    groups = [set(gpus[i : i + size]) for i in range(0, len(gpus), size)]
    order = gpus_by_rank(links(len(gpus), groups, NVLINK, 10), size)
    assert sorted(order) == sorted(gpus)
    for i in range(0, len(order), size):
        assert set(order[i : i + size]) in groups


@pytest.mark.parametrize(
    ("visible", "by_hand"),
    [
        (None, False),
        ("", False),
        ("0,1,2", False),
        ("4, 5,7", False),
        ("1,0", True),
        ("GPU-a", True),
    ],
)
def test_an_order_by_hand(visible: str | None, by_hand: bool) -> None:
    assert is_ordered_by_hand(visible) == by_hand


class FakeNvml:
    """Two cards with a bridge, and one behind the other processor."""

    class NVMLError(Exception):
        pass

    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0

    def __init__(self) -> None:
        self.open = 0
        self.handles = {f"GPU-{name}": name for name in "abc"}

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        if uuid not in self.handles:
            raise self.NVMLError
        return self.handles[uuid]

    def nvmlDeviceGetP2PStatus(self, a: str, b: str, index: int) -> int:
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        return 0 if {a, b} == {"a", "c"} else 1

    def nvmlDeviceGetTopologyCommonAncestor(self, a: str, b: str) -> int:
        return 50 if "b" in (a, b) else 10


def test_links_as_the_driver_tells_them() -> None:
    nvml = FakeNvml()
    found = read_links(["GPU-a", "GPU-b", "GPU-c"], nvml)
    assert found == [[NVLINK, 0, NVLINK], [0, NVLINK, 0], [NVLINK, 0, NVLINK]]
    assert read_links(["GPU-a", "GPU-of-elsewhere"], nvml) is None
    assert nvml.open == 0
