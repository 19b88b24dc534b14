"""Cores that a process may use, under the cgroups of containers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pagelet.kernels.cpu import cores

Quota = Callable[[str, dict[str, str]], float | None]


@pytest.fixture
def cgroups(tmp_path: Path) -> Quota:
    """Writes files of a cgroup file system; returns the quota that is found there."""

    def found(membership: str, files: dict[str, str]) -> float | None:
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "fs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return cores.cgroup_quota(tmp_path / "fs", tmp_path / "membership")

    return found


def test_version_2(cgroups: Quota) -> None:
    assert cgroups("0::/\n", {"cpu.max": "150000 100000\n"}) == 1.5


def test_version_2_without_a_limit(cgroups: Quota) -> None:
    assert cgroups("0::/pod\n", {"pod/cpu.max": "max 100000\n"}) is None


def test_the_tightest_of_nested_groups_counts(cgroups: Quota) -> None:
    files = {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "400000 100000\n", "a/b/c/x": ""}
    assert cgroups("0::/a/b/c\n", files) == 2


def test_version_1(cgroups: Quota) -> None:
    files = {"cpu/pod/cpu.cfs_quota_us": "300000\n", "cpu/pod/cpu.cfs_period_us": "100000\n"}
    assert cgroups("3:cpuset:/\n2:cpuacct,cpu:/pod\n", files) == 3
    assert cgroups("3:cpuset:/pod\n", files) is None


def test_version_1_without_a_limit(cgroups: Quota) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cgroups("1:cpu:/\n", files) is None


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert cores.cgroup_quota(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(("quota", "count"), [(None, 8), (2.0, 2), (3.7, 3), (0.5, 1), (64.0, 8)])
def test_usable_cores(monkeypatch: pytest.MonkeyPatch, quota: float | None, count: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cores, "cgroup_quota", lambda: quota)
    assert cores.usable_cores() == count
