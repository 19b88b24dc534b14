"""Memory limits of cgroups, read from folders that look like the kernel's."""

from pagelet.process.host_memory import _cgroup_limits, read_host_memory

V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def write_cgroup(folder, names, limit, used, inactive):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names[:2], (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {inactive}\nslab 7\n")


def test_v2_limits_of_all_parents_count(tmp_path):
    root = tmp_path / "cgroup"
    write_cgroup(root / "pods", V2, 9000, 6000, 1000)
    write_cgroup(root / "pods" / "pod" / "container", V2, 4000, 3000, 500)
    write_cgroup(root / "pods" / "pod", V2, "max", 3000, 0)
    (tmp_path / "self").write_text("0::/pods/pod/container\n")
    assert list(_cgroup_limits(root, tmp_path / "self")) == [(4000, 2500), (9000, 5000)]


def test_v1_memory_controller_among_others(tmp_path):
    root = tmp_path / "cgroup"
    write_cgroup(root / "memory" / "docker", V1, 8000, 3000, 1000)
    (tmp_path / "self").write_text("5:devices:/docker\n4:memory,hugetlb:/docker\n0::/\n")
    assert list(_cgroup_limits(root, tmp_path / "self")) == [(8000, 2000)]


def test_a_container_that_sees_the_hosts_path_finds_its_limit_at_the_root(tmp_path):
    root = tmp_path / "cgroup"
    write_cgroup(root, V2, 7000, 100, 0)
    (tmp_path / "self").write_text("0::/kubepods/burstable/pod1\n")
    assert list(_cgroup_limits(root, tmp_path / "self")) == [(7000, 100)]


def test_no_cgroups_no_limit(tmp_path):
    assert list(_cgroup_limits(tmp_path, tmp_path / "missing")) == []


def test_this_machine():
    memory = read_host_memory()
    assert 0 < memory.available <= memory.total
