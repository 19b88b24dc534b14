"""CoreDNS, so that pods find Services by name."""

from collections.abc import Mapping
from typing import Any, Final

from cluster.control_plane import DNS_ADDRESS
from cluster.images import COREDNS_IMAGE

_NAME: Final = "coredns"
_NAMESPACE: Final = "kube-system"
_PROTOCOLS: Final = ("UDP", "TCP")
_LABELS: Final = {"k8s-app": "kube-dns"}
_COREFILE: Final = """.:53 {
    errors
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
        ttl 5
    }
    reload
}
"""


def _object(kind: str, version: str, name: str, **content: Any) -> dict[str, Any]:
    cluster_wide = kind.startswith("Cluster")
    metadata = {"name": name} if cluster_wide else {"name": name, "namespace": _NAMESPACE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def objects() -> list[Mapping[str, Any]]:
    """A DaemonSet, so that names are found while any node is drained, and what it needs."""
    rbac = "rbac.authorization.k8s.io"
    watch = ["list", "watch"]
    rules = [
        {
            "apiGroups": [""],
            "resources": ["endpoints", "services", "pods", "namespaces"],
            "verbs": watch,
        },
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
    ]
    container = {
        "name": _NAME,
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"name": f"dns-{p.lower()}", "containerPort": 53, "protocol": p} for p in _PROTOCOLS
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 2},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }
    pod = {
        "serviceAccountName": _NAME,
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": _NAME}}],
    }
    return [
        _object("ServiceAccount", "v1", _NAME),
        _object("ClusterRole", f"{rbac}/v1", "e2e-coredns", rules=rules),
        _object(
            "ClusterRoleBinding",
            f"{rbac}/v1",
            "e2e-coredns",
            roleRef={"apiGroup": rbac, "kind": "ClusterRole", "name": "e2e-coredns"},
            subjects=[{"kind": "ServiceAccount", "name": _NAME, "namespace": _NAMESPACE}],
        ),
        _object("ConfigMap", "v1", _NAME, data={"Corefile": _COREFILE}),
        _object(
            "DaemonSet",
            "apps/v1",
            _NAME,
            spec={
                "selector": {"matchLabels": _LABELS},
                "template": {"metadata": {"labels": _LABELS}, "spec": pod},
            },
        ),
        _object(
            "Service",
            "v1",
            "kube-dns",
            spec={
                "selector": _LABELS,
                "clusterIP": DNS_ADDRESS,
                "ports": [
                    {"name": f"dns-{p.lower()}", "port": 53, "protocol": p} for p in _PROTOCOLS
                ],
            },
        ),
    ]
