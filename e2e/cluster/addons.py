"""Prometheus, KEDA and metrics-server on a cluster of ours, for scenarios that scale by metrics.

Their objects are what their own modules ship, with images that are built here.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from client.served import served

from cluster import programs
from cluster.cache import say
from cluster.certificates import Authority
from cluster.images import Archive, of_one_program
from cluster.kubectl import Kubectl
from cluster.local import Cluster

MONITORING: Final = "monitoring"
"""Prometheus' namespace, which the chart lets scrape replicas by default."""
PROMETHEUS: Final = "prometheus-operated"
"""Its Service, as the Prometheus Operator calls it, and the chart expects it."""
_ADAPTER: Final = "external-metrics"
_USER: Final = 65532
_SCRAPE: Final = "2s"

Object = dict[str, Any]


def _image(program: programs.Program) -> str:
    return f"pagelet.dev/e2e/{program.name}:1"


def _load(cluster: Cluster, *wanted: programs.Program) -> None:
    archives: list[Archive] = [of_one_program(_image(program), program) for program in wanted]
    cluster.load(*archives)


def _wait(kubectl: Kubectl, *deployments: str) -> None:
    for name in deployments:
        kubectl.run("rollout", "status", f"deployment/{name}", "--timeout=300s", seconds=310)


def install_prometheus(cluster: Cluster) -> None:
    """It scrapes every pod that asks for it by annotation, each `_SCRAPE`."""
    say("Installing Prometheus")
    _load(cluster, programs.PROMETHEUS)
    kubectl = Kubectl(cluster.kubeconfig, MONITORING)
    kubectl.apply(*_prometheus())
    _wait(kubectl, PROMETHEUS)


def install_keda(cluster: Cluster) -> None:
    """Without its admission webhooks."""
    say("Installing KEDA")
    _load(cluster, programs.KEDA, programs.KEDA_ADAPTER)
    objects = [
        one
        for one in _shipped(programs.KEDA, "github.com/kedacore/keda/v2", "config/default")
        if "admission" not in one["metadata"]["name"] and "Webhook" not in one["kind"]
    ]
    kubectl = Kubectl(cluster.kubeconfig, "keda")
    for one in objects:
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "keda-operator":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            container["args"] += ["--enable-webhook-patching=false"]  # there are none
    by_name = {"keda-operator": programs.KEDA, "keda-metrics-apiserver": programs.KEDA_ADAPTER}
    _apply(kubectl, objects, by_name)
    _wait(kubectl, *by_name)


def install_metrics_server(cluster: Cluster) -> None:
    """The kubelets here sign their certificates themselves."""
    say("Installing metrics-server")
    _load(cluster, programs.METRICS_SERVER)
    module = "sigs.k8s.io/metrics-server"
    objects = list(_shipped(programs.METRICS_SERVER, module, "manifests/base"))
    for one in objects:
        if one["kind"] == "Deployment":
            container = one["spec"]["template"]["spec"]["containers"][0]
            container["args"] += ["--kubelet-insecure-tls"]
    kubectl = Kubectl(cluster.kubeconfig, "kube-system")
    _apply(kubectl, objects, {"metrics-server": programs.METRICS_SERVER})
    _wait(kubectl, "metrics-server")


@contextlib.contextmanager
def external_metrics(cluster: Cluster, prometheus: str) -> Iterator[None]:
    """An adapter of the tests' own serves what that Prometheus knows, while the block runs."""
    say("Installing an adapter of external metrics")
    kubectl = Kubectl(cluster.kubeconfig, MONITORING)
    with tempfile.TemporaryDirectory() as folder:
        identity = Authority(Path(folder) / "pki").issue(_ADAPTER, _ADAPTER)
        tls = {"tls.crt": identity.certificate.read_text(), "tls.key": identity.key.read_text()}
    port = 6443
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": _ADAPTER},
            "stringData": tls,
        },
        *served(_ADAPTER, "external_metrics.py", prometheus, port=port, secret=_ADAPTER),
    )
    _wait(kubectl, _ADAPTER)
    group, version = "external.metrics.k8s.io", "v1beta1"
    kubectl.apply(
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": _ADAPTER, "namespace": MONITORING, "port": port},
            },
        }
    )
    try:
        yield
    finally:
        kubectl.run("delete", "apiservice", f"{version}.{group}")
        kubectl.run("delete", f"deployment/{_ADAPTER}", f"service/{_ADAPTER}", f"secret/{_ADAPTER}")


def _shipped(program: programs.Program, module: str, folder: str) -> Sequence[Object]:
    """The objects of a kustomization in a Go module."""
    go, _ = programs.find_go()
    command = [go, "list", "-m", "-f", "{{.Dir}}", module]
    listed = subprocess.run(command, cwd=program.folder, check=True, capture_output=True, text=True)
    place = Path(listed.stdout.strip()) / folder
    made = Kubectl(Path("/dev/null")).run("kustomize", str(place))
    return [one for one in yaml.safe_load_all(made) if one]


def _apply(
    kubectl: Kubectl, objects: Sequence[Object], images: Mapping[str, programs.Program]
) -> None:
    """Applies them, Deployments with images of ours, and definitions before what is defined."""
    for one in objects:
        if one["kind"] == "Deployment" and one["metadata"]["name"] in images:
            program = images[one["metadata"]["name"]]
            pod = one["spec"]["template"]["spec"]
            pod["securityContext"] = pod.get("securityContext", {}) | {"runAsUser": _USER}
            (container,) = pod["containers"]
            container["image"], container["imagePullPolicy"] = _image(program), "Never"
            container["command"] = [f"/{program.name}"]
            container["resources"] = {}
    first = ("Namespace", "CustomResourceDefinition")
    parts: dict[tuple[bool, str], list[Object]] = {}
    for one in objects:
        namespace = one["metadata"].get("namespace", kubectl.namespace)
        parts.setdefault((one["kind"] not in first, namespace), []).append(one)
    for (_, namespace), part in sorted(parts.items(), key=lambda item: item[0]):
        Kubectl(kubectl.kubeconfig, namespace).apply(*part)


def _prometheus() -> list[Object]:
    rbac = "rbac.authorization.k8s.io"
    here = {"name": PROMETHEUS, "namespace": MONITORING}
    labels = {"app": PROMETHEUS}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    pod = {
        "serviceAccountName": PROMETHEUS,
        "terminationGracePeriodSeconds": 2,
        "securityContext": {"runAsUser": _USER, "runAsNonRoot": True, "fsGroup": _USER},
        "containers": [
            {
                "name": "prometheus",
                "image": _image(programs.PROMETHEUS),
                "imagePullPolicy": "Never",
                "args": ["--config.file=/config/prometheus.yml", "--storage.tsdb.path=/data"],
                "ports": [{"name": "http", "containerPort": 9090}],
                "readinessProbe": {
                    "httpGet": {"path": "/-/ready", "port": "http"},
                    "periodSeconds": 1,
                },
                "volumeMounts": [
                    {"name": "config", "mountPath": "/config"},
                    {"name": "data", "mountPath": "/data"},
                ],
            }
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": PROMETHEUS}},
            {"name": "data", "emptyDir": {}},
        ],
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MONITORING}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": here},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": PROMETHEUS},
            "rules": [rule],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": PROMETHEUS},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": PROMETHEUS},
            "subjects": [{"kind": "ServiceAccount", **here}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": here,
            "data": {"prometheus.yml": yaml.safe_dump(_configuration())},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": here,
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": here,
            "spec": {"selector": labels, "ports": [{"port": 9090, "targetPort": "http"}]},
        },
    ]


def _configuration() -> Object:
    annotation = "__meta_kubernetes_pod_annotation_prometheus_io"
    relabel: list[Object] = [
        {"source_labels": [f"{annotation}_scrape"], "regex": "true", "action": "keep"},
        {
            "source_labels": ["__meta_kubernetes_pod_ip", f"{annotation}_port"],
            "separator": ":",
            "target_label": "__address__",
        },
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    ]
    return {
        "global": {"scrape_interval": _SCRAPE, "scrape_timeout": _SCRAPE},
        "scrape_configs": [
            {
                "job_name": "pods",
                "kubernetes_sd_configs": [{"role": "pod"}],
                "relabel_configs": relabel,
            }
        ],
    }
