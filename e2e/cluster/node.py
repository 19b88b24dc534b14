"""A node's machine: containerd, kubelet and kube-proxy, in a `Sandbox` of the control plane's.

Every folder that these programs write to is one of the run's, mounted over the usual place, so
they run with their defaults and the machine around them is left as it was.
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Final

from cluster.control_plane import DNS_ADDRESS, POD_RANGE, Layout
from cluster.sandbox import Inside, SandboxFailed, run
from cluster.supervisor import Supervisor

PAUSE_IMAGE: Final = "pagelet.dev/e2e/pause:1"
_FOLDERS: Final = (
    *("/run", "/var/log", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/cni"),
    "/etc/cni/net.d",
)
_KERNEL_SETTINGS: Final = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
"""Settings of the whole kernel that kubelet sets; here it sets files that cover them."""
_SOCKET: Final = "/run/containerd/containerd.sock"

_CONTAINERD: Final = f"""
version = 2
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  # Without CAP_SYS_RESOURCE, as in many sandboxes, a lower score cannot be set.
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""


class Node:
    """Node `index`, counted from 1, of a cluster."""

    def __init__(self, layout: Layout, index: int, supervisor: Supervisor) -> None:
        self._layout = layout
        self._index = index
        self._supervisor = supervisor
        self._name = f"node-{index}"
        self._folder = layout.folder / self._name
        self._address = layout.node_address(index)

    def start(self) -> None:
        """Returns when kubelet and kube-proxy are up. Raises `SandboxFailed`."""
        self._mount()
        self._connect()
        (self._folder / "containerd.toml").write_text(_CONTAINERD)
        containerd = ["containerd", f"--config={self._folder / 'containerd.toml'}"]
        self._supervisor.start({"containerd": containerd}, self._containerd_ready)
        self._supervisor.start(
            {"kubelet": self._kubelet(), "kube-proxy": self._kube_proxy()}, self._kubelet_ready
        )

    def _mount(self) -> None:
        run("mount", "--make-rshared", "/")
        for place in _FOLDERS:
            own = self._folder / place.strip("/").replace("/", "-")
            own.mkdir(parents=True)
            Path(place).mkdir(parents=True, exist_ok=True)
            run("mount", "--bind", str(own), place)
        for setting in _KERNEL_SETTINGS:
            real = Path("/proc/sys") / setting
            cover = self._folder / "settings" / setting
            cover.parent.mkdir(parents=True, exist_ok=True)
            cover.write_text(real.read_text())
            run("mount", "--bind", str(cover), str(real))

    def _connect(self) -> None:
        run("ip", "link", "set", "lo", "up")
        run("ip", "address", "add", f"{self._address}/24", "dev", "eth0")
        run("ip", "link", "set", "eth0", "up")
        run("ip", "route", "add", "default", "via", self._layout.address)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        for other in range(1, self._layout.nodes + 1):
            if other != self._index:
                via = self._layout.node_address(other)
                run("ip", "route", "add", self._layout.pod_range(other), "via", via)
        # The machine outside knows nodes, but no pods.
        own, outside = self._layout.pod_range(self._index), f"{self._layout.network}.1"
        masquerade = ["-s", own, "-d", outside, "-j", "MASQUERADE"]
        run("iptables", "-t", "nat", "-A", "POSTROUTING", *masquerade)
        # A routed device for each pod and no bridge: Services work between pods of one node
        # without the bridge's packets having to be passed to iptables.
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "mtu": 1500,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": self._layout.pod_range(self._index)}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        Path("/etc/cni/net.d/10-pods.conflist").write_text(json.dumps(network))

    def _containerd_ready(self) -> bool:
        with contextlib.suppress(SandboxFailed):
            return bool(run("ctr", "version"))
        return False

    def _kubelet(self) -> list[str]:
        group = f"/pagelet-{self._layout.folder.name}-{self._name}"
        _make_cgroup(group)
        resolver = self._folder / "resolv.conf"
        resolver.touch()  # no name outside of the cluster can be looked up
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "authentication": {"x509": {"clientCAFile": str(self._layout.folder / "pki/ca.crt")}},
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(resolver),
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": group,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,  # what was imported cannot be pulled again
        }
        path = self._folder / "kubelet.json"
        path.write_text(json.dumps(configuration, indent=1))
        return [
            self._layout.program("kubelet"),
            f"--config={path}",
            f"--kubeconfig={self._layout.kubeconfig(self._name)}",
            f"--hostname-override={self._name}",
            f"--node-ip={self._address}",
        ]

    def _kube_proxy(self) -> list[str]:
        return [
            self._layout.program("kube-proxy"),
            f"--kubeconfig={self._layout.kubeconfig('kube-proxy')}",
            f"--hostname-override={self._name}",
            f"--cluster-cidr={POD_RANGE}",
            "--proxy-mode=iptables",
            # Limits of the whole kernel, which a namespace cannot set.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
        ]

    def _kubelet_ready(self) -> bool:
        kubeconfig = f"--kubeconfig={self._layout.kubeconfig('admin')}"
        ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        query = [kubeconfig, "get", "node", self._name, f"--output={ready}"]
        with contextlib.suppress(SandboxFailed):
            return run(self._layout.program("kubectl"), *query) == "True"
        return False


def _make_cgroup(group: str) -> None:
    """In every hierarchy: kubelet does not make the root that it is given."""
    top = Path("/sys/fs/cgroup")
    unified = (top / "cgroup.controllers").exists()
    for hierarchy in [top] if unified else [path for path in top.iterdir() if path.is_dir()]:
        folder = hierarchy / group.strip("/")
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # of version 1: empty, and so unusable
            if (folder / setting).exists() and not unified:
                (folder / setting).write_text((hierarchy / setting).read_text())


def main() -> None:
    """`python -m cluster.node FOLDER NETWORK NODES INDEX`."""
    folder, network, nodes, index = sys.argv[1:]
    layout = Layout(Path(folder), network, int(nodes))
    inside = Inside()
    os.environ["PATH"] = f"{layout.folder / 'bin'}:{os.environ['PATH']}:/usr/sbin:/sbin"
    supervisor = Supervisor(layout.folder / "logs" / f"node-{index}")
    try:
        Node(layout, int(index), supervisor).start()
        inside.say(f"node-{index} is ready")
        inside.done()
        inside.next_request()  # there is none
    except KeyboardInterrupt:
        pass
    except SandboxFailed as error:
        inside.failed(str(error))
    finally:
        supervisor.stop_all()


if __name__ == "__main__":
    main()
