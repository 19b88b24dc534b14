"""The control plane's machine, and in it the nodes' machines; `cluster.local` runs it.

Layout of the network: one bridge holds the outside's end (`.1`), the control plane (`.2`) and the
nodes (`.11` and on), so all of them reach each other directly; each node has a range of pod
addresses that the others have a route to.
"""

import contextlib
import dataclasses
import json
import sys
import urllib.request
from pathlib import Path
from typing import Final

from cluster.certificates import Authority, Identity, write_kubeconfig
from cluster.sandbox import Inside, Sandbox, SandboxFailed, run
from cluster.supervisor import Supervisor

SERVICE_RANGE: Final = "10.96.0.0/16"
POD_RANGE: Final = "10.244.0.0/16"
DNS_ADDRESS: Final = "10.96.0.10"
API_PORT: Final = 6443
_ETCD: Final = "http://127.0.0.1:2379"
_ETCD_PEER: Final = "http://127.0.0.1:2380"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where things are in one run. `folder` is the run's own, `network` such as `10.240.7`."""

    folder: Path
    network: str
    nodes: int

    @property
    def address(self) -> str:
        """Of the API server."""
        return f"{self.network}.2"

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{self.address}:{API_PORT}"

    def node_address(self, index: int) -> str:
        """Of node `index`, counted from 1."""
        return f"{self.network}.{10 + index}"

    def pod_range(self, index: int) -> str:
        """Addresses of the pods of node `index`."""
        return f"10.244.{index}.0/24"

    def program(self, name: str) -> str:
        """Path of a Kubernetes component."""
        return str(self.folder / "bin" / name)

    def kubeconfig(self, user: str) -> Path:
        """Path of a user's kubeconfig: `admin`, `node-1`, ..."""
        return self.folder / f"{user}.kubeconfig"


def _flags(values: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


class ControlPlane:
    """etcd, API server, controller manager and scheduler of one cluster."""

    def __init__(self, layout: Layout, supervisor: Supervisor) -> None:
        self._layout = layout
        self._supervisor = supervisor
        self._authority = Authority(layout.folder / "pki")

    def start(self) -> None:
        """Returns when the API server is ready. Raises `SandboxFailed`."""
        self._supervisor.start({"etcd": self._etcd()}, self._etcd_ready)
        self._supervisor.start({"kube-apiserver": self._api_server()}, self._api_server_ready)
        self._supervisor.start(
            {
                "kube-controller-manager": self._controller_manager(),
                "kube-scheduler": self._scheduler(),
            },
            self._default_account_exists,
        )

    def user(self, name: str, subject: str) -> Path:
        """Makes a kubeconfig for a user, such as `/O=system:masters/CN=admin`."""
        identity = self._authority.issue(name, subject)
        path = self._layout.kubeconfig(name)
        return write_kubeconfig(path, self._layout.server, self._authority, identity)

    def _etcd(self) -> list[str]:
        # Without fsync: these data need not outlive the machine, and disks are slow.
        flags = {
            "data-dir": self._layout.folder / "etcd",
            "listen-client-urls": _ETCD,
            "advertise-client-urls": _ETCD,
            "listen-peer-urls": _ETCD_PEER,
            "initial-advertise-peer-urls": _ETCD_PEER,
            "initial-cluster": f"default={_ETCD_PEER}",
            "unsafe-no-fsync": "true",
        }
        return [self._layout.program("etcd"), *_flags(flags)]

    def _etcd_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{_ETCD}/health") as answer:
            return bool(json.load(answer)["health"] == "true")
        return False

    def _api_server(self) -> list[str]:
        issue = self._authority.issue
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        addresses = [self._layout.address, "127.0.0.1", "10.96.0.1"]
        serving = issue("kube-apiserver", "kube-apiserver", hosts=[*names, *addresses])
        kubelet_client = issue("kubelet-client", "/O=system:masters/CN=kube-apiserver")
        front_proxy = issue("front-proxy", "front-proxy")
        tokens_key = self._authority.signing_key("service-accounts")
        ca = self._authority.certificate
        flags = {
            "etcd-servers": _ETCD,
            "advertise-address": self._layout.address,
            "secure-port": API_PORT,
            **_tls("tls-cert-file", "tls-private-key-file", serving),
            **_tls("kubelet-client-certificate", "kubelet-client-key", kubelet_client),
            **_tls("proxy-client-cert-file", "proxy-client-key-file", front_proxy),
            "client-ca-file": ca,
            "requestheader-client-ca-file": ca,
            "requestheader-allowed-names": "front-proxy",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "enable-aggregator-routing": "true",
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": tokens_key,
            "service-account-signing-key-file": tokens_key,
            "service-cluster-ip-range": SERVICE_RANGE,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "profiling": "false",
        }
        return [self._layout.program("kube-apiserver"), *_flags(flags)]

    def _api_server_ready(self) -> bool:
        admin = self._layout.kubeconfig("admin")
        if not admin.exists():
            self.user("admin", "/O=system:masters/CN=admin")
        kubectl = [self._layout.program("kubectl"), f"--kubeconfig={admin}"]
        with contextlib.suppress(SandboxFailed):
            return run(*kubectl, "get", "--raw=/readyz") == "ok"
        return False

    def _controller_manager(self) -> list[str]:
        kubeconfig = self.user("controller-manager", "system:kube-controller-manager")
        flags = {
            "kubeconfig": kubeconfig,
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "root-ca-file": self._authority.certificate,
            "service-account-private-key-file": self._layout.folder / "pki/service-accounts.key",
            # The kubelets of a busy machine are late to come back after the API server was away.
            "node-monitor-grace-period": "120s",
            "horizontal-pod-autoscaler-sync-period": "5s",
            "horizontal-pod-autoscaler-downscale-stabilization": "10s",
        }
        return [self._layout.program("kube-controller-manager"), *_flags(flags)]

    def _scheduler(self) -> list[str]:
        kubeconfig = self.user("scheduler", "system:kube-scheduler")
        flags = {"kubeconfig": kubeconfig, "leader-elect": "false"}
        return [self._layout.program("kube-scheduler"), *_flags(flags)]

    def _default_account_exists(self) -> bool:
        """The controller manager makes it in every namespace; pods need it."""
        kubectl = [
            self._layout.program("kubectl"),
            f"--kubeconfig={self._layout.kubeconfig('admin')}",
        ]
        with contextlib.suppress(SandboxFailed):
            return bool(run(*kubectl, "get", "serviceaccount", "default", "-o", "name"))
        return False


def _tls(certificate_flag: str, key_flag: str, identity: Identity) -> dict[str, object]:
    return {certificate_flag: identity.certificate, key_flag: identity.key}


def _network(layout: Layout) -> None:
    """The bridge that everything is plugged into; `eth0` is the way out."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "bridge", "type", "bridge")
    run("ip", "link", "set", "eth0", "master", "bridge", "up")
    run("ip", "address", "add", f"{layout.address}/24", "dev", "bridge")
    run("ip", "link", "set", "bridge", "up")


def _start_node(layout: Layout, index: int, inside: Inside) -> Sandbox:
    name = f"node-{index}"

    def connect(pid: int) -> None:
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run("ip", "link", "set", name, "master", "bridge", "up")

    arguments = [str(layout.folder), layout.network, str(layout.nodes), str(index)]
    node = Sandbox("cluster.node", arguments, started=connect, said=inside.say)
    run("ip", "route", "add", layout.pod_range(index), "via", layout.node_address(index))
    return node


def _serve(inside: Inside, supervisor: Supervisor) -> None:
    while True:
        match inside.next_request():
            case ["stop", component]:
                supervisor.stop(component)
            case ["resume", component]:
                supervisor.resume(component)
            case request:
                raise AssertionError(request)
        inside.done()


def main() -> None:
    """`python -m cluster.control_plane FOLDER NETWORK NODES`."""
    folder, network, nodes = sys.argv[1:]
    layout = Layout(Path(folder), network, int(nodes))
    inside = Inside()
    supervisor = Supervisor(layout.folder / "logs")
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        stack.callback(supervisor.stop_all)
        try:
            _network(layout)
            plane = ControlPlane(layout, supervisor)
            plane.start()
            inside.say(f"The API server is ready at {layout.server}")
            for index in range(1, layout.nodes + 1):
                plane.user(f"node-{index}", f"/O=system:nodes/CN=system:node:node-{index}")
                plane.user("kube-proxy", "system:kube-proxy")
                stack.enter_context(_start_node(layout, index, inside))
        except SandboxFailed as error:
            inside.failed(str(error))
            return
        inside.done()
        _serve(inside, supervisor)


if __name__ == "__main__":
    main()
