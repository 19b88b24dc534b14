"""A Kubernetes cluster on this machine, with control plane and nodes in Linux namespaces."""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from cluster import dns, programs
from cluster.cache import CACHE, say
from cluster.control_plane import Layout
from cluster.images import Archive, cluster_archives
from cluster.kubectl import Kubectl
from cluster.packages import install_packages
from cluster.sandbox import Sandbox, SandboxFailed, run

_CGROUPS: Final = Path("/sys/fs/cgroup")


class CannotRun(Exception):
    """This machine cannot run a cluster; the message says what it lacks."""


class Cluster:
    """A running cluster. `kubeconfig` is its administrator's."""

    def __init__(self, layout: Layout, machine: Sandbox) -> None:
        self._machine = machine
        self.layout = layout
        self.kubeconfig = layout.kubeconfig("admin")

    @contextlib.contextmanager
    def without(self, component: str) -> Iterator[None]:
        """Stops a component of the control plane, such as `kube-apiserver`, for a while."""
        self._machine.ask("stop", component)
        try:
            yield
        finally:
            self._machine.ask("resume", component)

    def load(self, *archives: Archive) -> None:
        """Puts images on every node. Raises `SandboxFailed`."""
        for archive in archives:
            self._on_every_node("import", str(archive.path))

    def tag(self, image: str, name: str) -> None:
        """Gives an image another name on every node. Raises `SandboxFailed`."""
        self._on_every_node("tag", image, name)

    def _on_every_node(self, *command: str) -> None:
        def on_node(index: int) -> None:
            socket = self.layout.folder / f"node-{index}" / "run/containerd/containerd.sock"
            run("ctr", f"--address={socket}", "--namespace=k8s.io", "images", *command)

        with ThreadPoolExecutor() as threads:
            list(threads.map(on_node, range(1, self.layout.nodes + 1)))


def check_machine() -> None:
    """Raises `CannotRun` where namespaces or tools are missing."""
    try:
        programs.find_go()
    except programs.CannotBuild as error:
        raise CannotRun(str(error)) from error
    if os.geteuid() != 0:
        raise CannotRun("a local cluster needs root: it makes network devices and mounts")
    for tool in ("unshare", "nsenter", "ip", "openssl"):
        if shutil.which(tool) is None:
            raise CannotRun(f"`{tool}` is missing")
    probe = ["unshare", "--pid", "--fork", "--mount-proc", "--mount", "--net", "true"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        raise CannotRun("no namespaces can be made here (is this a container without privileges?)")


@contextlib.contextmanager
def local_cluster(name: str = "e2e", *, nodes: int) -> Iterator[Cluster]:
    """Brings up a cluster and takes it away again, whatever ends the block.

    `name` tells clusters on one machine apart. With 0 nodes it is a control plane alone, for what
    needs an API server but no pods. Raises `CannotRun`, `CannotBuild` and `SandboxFailed`.
    """
    check_machine()
    if nodes:
        install_packages(
            "containerd", "runc", "containernetworking-plugins", "iptables", "conntrack"
        )
    archives = cluster_archives() if nodes else []
    folder = CACHE / "run" / name
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(_lock(folder.with_suffix(".lock")))
        _remove_cgroups(name)
        shutil.rmtree(folder)
        programs.link_components(folder / "bin")
        stack.callback(_remove_cgroups, name)
        stack.callback(_remove_data, folder)
        network, device = stack.enter_context(_network())
        layout = Layout(folder, network, nodes)
        say(f"Starting a control plane and {nodes} nodes; logs are in {folder}")
        arguments = [str(folder), network, str(nodes)]
        machine = stack.enter_context(
            Sandbox(
                "cluster.control_plane",
                arguments,
                started=_plug(device),
                said=say,
                pass_fds=[lock],
            )
        )
        cluster = Cluster(layout, machine)
        if nodes:
            cluster.load(*archives)
            _start_dns(cluster)
        yield cluster
        say("Stopping the cluster")


def _remove_data(folder: Path) -> None:
    """All but the logs: images alone are gigabytes."""
    for path in folder.iterdir():
        if path.is_dir() and path.name != "logs":
            shutil.rmtree(path, ignore_errors=True)


def _start_dns(cluster: Cluster) -> None:
    kubectl = Kubectl(cluster.kubeconfig, "kube-system")
    kubectl.apply(*dns.objects())
    kubectl.run("rollout", "status", "daemonset/coredns", "--timeout=120s", seconds=130)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[int]:
    """Held by every process of a cluster until its end, so that a run that follows an aborted one
    waits until that is wholly gone."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for the end of another run with the name {path.stem}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _remove_cgroups(name: str) -> None:
    """Control groups are the one thing that outlives the processes in them."""
    groups = f"pagelet-{name}-node-*"
    for top in [*_CGROUPS.glob(groups), *_CGROUPS.glob(f"*/{groups}")]:  # of version 2, of 1
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


@contextlib.contextmanager
def _network() -> Iterator[tuple[str, str]]:
    """A range of 256 addresses that is in use nowhere on this machine, as its first three numbers,
    and a device with its first address, whose other end waits to be plugged in."""
    used = run("ip", "-4", "-brief", "address")
    for third in range(256):
        network, device = f"10.240.{third}", f"pagelet-{third}"
        if f" {network}." in used:
            continue
        try:  # at most one run can make it
            run("ip", "link", "add", device, "type", "veth", "peer", "name", f"{device}-in")
        except SandboxFailed:
            continue
        try:
            run("ip", "address", "add", f"{network}.1/24", "dev", device)
            run("ip", "link", "set", device, "up")
            yield network, device
        finally:
            with contextlib.suppress(SandboxFailed):  # gone with the machine that it led to
                run("ip", "link", "delete", device)
        return
    raise SandboxFailed("all of 10.240.0.0/16 is in use on this machine")


def _plug(device: str) -> Callable[[int], None]:
    """Moves the other end of a device into a machine."""

    def move(pid: int) -> None:
        run("ip", "link", "set", f"{device}-in", "netns", str(pid), "name", "eth0")

    return move
