"""Ranks keep to the CPUs of one NUMA node each, where that divides them evenly."""

from pathlib import Path

import pytest

from pagelet.engine.executor.numa import cpus_of_ranks


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    for node, cpus in ((0, "0-1,8-9\n"), (1, "2-3,10-11\n"), (10, "4\n"), (2, "\n")):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        (folder / "cpulist").write_text(cpus)
    (tmp_path / "node3").mkdir()  # without a list
    return tmp_path


def test_neighbours_share_a_node(nodes: Path) -> None:
    cpus = cpus_of_ranks(4, range(4), nodes)
    assert cpus == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert cpus_of_ranks(2, range(12), nodes) == [list(range(12))] * 2  # three nodes have CPUs
    assert cpus_of_ranks(3, range(12), nodes) == [[0, 1, 8, 9], [2, 3, 10, 11], [4]]


def test_only_allowed_cpus_count(nodes: Path) -> None:
    assert cpus_of_ranks(2, {1, 3, 10}, nodes) == [[1], [3, 10]]
    assert cpus_of_ranks(2, {0, 1}, nodes) == [[0, 1], [0, 1]]


def test_a_machine_that_does_not_say_has_one_node(tmp_path: Path) -> None:
    assert cpus_of_ranks(2, {5, 4}, tmp_path / "none") == [[4, 5], [4, 5]]
