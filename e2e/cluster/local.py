"""A Kubernetes cluster on this machine, with control plane and nodes in Linux namespaces."""

import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
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
        sockets = [
            self.layout.folder / f"node-{index}" / "run/containerd/containerd.sock"
            for index in range(1, self.layout.nodes + 1)
        ]
        for archive, socket in itertools.product(archives, sockets):
            containerd = ["ctr", f"--address={socket}", "--namespace=k8s.io"]
            run(*containerd, "images", "import", str(archive.path))

    def destroy_node(self, index: int) -> None:
        """Ends node `index`, counted from 1, with all that runs on it."""
        self._machine.ask("stop-node", str(index))


def check_machine() -> None:
    """Raises `CannotRun` where namespaces or tools are missing."""
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
    with _lock(folder.with_suffix(".lock")) as lock:
        _remove(folder, name)
        folder.mkdir()
        programs.link_components(folder / "bin")
        layout = Layout(folder, _free_network(), nodes)
        device = f"pagelet-{layout.network.rpartition('.')[2]}"

        def connect(pid: int) -> None:
            run(
                "ip",
                "link",
                "add",
                device,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                str(pid),
            )
            run("ip", "address", "add", f"{layout.network}.1/24", "dev", device)
            run("ip", "link", "set", device, "up")

        say(f"Starting a control plane and {nodes} nodes; logs are in {folder}")
        arguments = [str(folder), layout.network, str(nodes)]
        try:
            with Sandbox(
                "cluster.control_plane", arguments, started=connect, said=say, pass_fds=[lock]
            ) as machine:
                cluster = Cluster(layout, machine)
                if nodes:
                    cluster.load(*archives)
                    _start_dns(cluster)
                yield cluster
                say("Stopping the cluster")
        finally:
            _remove_cgroups(name)


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


def _remove(folder: Path, name: str) -> None:
    _remove_cgroups(name)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_cgroups(name: str) -> None:
    """Control groups are the one thing that outlives the processes in them."""
    groups = f"pagelet-{name}-node-*"
    for top in [*_CGROUPS.glob(groups), *_CGROUPS.glob(f"*/{groups}")]:  # of version 2, of 1
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _free_network() -> str:
    """A range of 256 addresses that no device of this machine has, as its first three numbers."""
    used = run("ip", "-4", "-brief", "address")
    for third in range(256):
        network = f"10.240.{third}"
        if f"{network}." not in used:
            return network
    raise SandboxFailed("all of 10.240.0.0/16 is in use on this machine")
