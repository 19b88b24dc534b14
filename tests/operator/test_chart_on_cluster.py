"""The chart as Helm installs it: what the operator may do, and what a namespace is refused."""

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.kubectl import helm_program
from cluster.programs import HELM, is_built
from pagelet.operator.kube.client import ApiError
from pagelet.operator.kube.resources import SERVICES
from support.broken_services import service as make
from support.cluster import Api, eventually, running_operator

ROOT = Path(__file__).parents[2]
FORBIDDEN = [
    ("get", "", "secrets"),
    ("list", "", "secrets"),
    ("get", "", "pods/exec"),
    ("create", "", "pods"),
    ("create", "apps", "daemonsets"),
    ("patch", "pagelet.dev", "inferenceservices"),
    ("delete", "pagelet.dev", "inferenceservices"),
    ("update", "pagelet.dev", "inferenceservices/finalizers"),
    ("escalate", "rbac.authorization.k8s.io", "roles"),
    ("bind", "rbac.authorization.k8s.io", "roles"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
]


@pytest.fixture(scope="session")
def helm(control_plane: Path) -> str:
    """Its path."""
    if shutil.which("helm") or is_built(HELM):
        return helm_program()
    pytest.skip("Helm was not built here yet: `make e2e` does that and runs this test")


def install(helm: str, kubeconfig: Path, namespace: str, *values: str) -> None:
    settings = [f"--set={value}" for value in (f"nameOverride={namespace}", *values)]
    subprocess.run(
        [helm, "upgrade", "--install", namespace, ROOT / "charts/pagelet", *settings,
         "--set=crds.install=false", "--namespace", namespace, "--kubeconfig", kubeconfig],
        check=True,
        capture_output=True,
        timeout=120,
    )  # fmt: skip


def uninstall(helm: str, kubeconfig: Path, namespace: str) -> None:
    command = [helm, "uninstall", namespace, "-n", namespace, "--kubeconfig", kubeconfig]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


async def token_of(api: Api, namespace: str) -> str:
    """Of the service account that the chart made."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{namespace}/token"
    made = await api.request("POST", path, body={"spec": {}})
    return str(made["status"]["token"])


def kubeconfig_with(token: str, admin: Path, target: Path) -> Path:
    """The administrator's cluster, seen by another."""
    config = yaml.safe_load(admin.read_text())
    [cluster] = config["clusters"]
    authority = cluster["cluster"]
    if file := authority.pop("certificate-authority", None):
        content = (admin.parent / file).read_bytes()
        authority["certificate-authority-data"] = base64.b64encode(content).decode()
    user = {"name": "operator", "user": {"token": token}}
    context = {"name": "c", "context": {"cluster": cluster["name"], "user": "operator"}}
    made = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "c"}
    target.write_text(yaml.safe_dump(made))
    return target


async def may(api: Api, account: str, verb: str, group: str, resource: str, namespace: str) -> bool:
    name, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb, "group": group, "resource": name, "subresource": subresource,
        "namespace": namespace,
    }  # fmt: skip
    review = await api.request(
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        body={"spec": {"user": account, "resourceAttributes": attributes}},
    )
    return bool(review["status"]["allowed"])


async def test_the_operator_works_with_its_own_rights_and_has_no_others(
    api: Api, helm: str, control_plane: Path, namespace: str, tmp_path: Path
) -> None:
    install(helm, control_plane, namespace, f"namespaces={{{namespace}}}")
    try:
        token = await token_of(api, namespace)
        own = kubeconfig_with(token, control_plane, tmp_path / "kubeconfig")
        log = tmp_path / "log"
        spec: dict[str, Any] = {"exposure": {"ingress": {"host": "a.example.com"}}}
        canary = {"weight": 1, "image": "next"}
        with running_operator(own, namespace, log):
            await api.create(SERVICES, namespace, make(name="a", canary=canary, **spec))

            async def serves() -> bool:
                await api.run_pods(namespace)
                found = await api.service(namespace, "a")
                reasons = {c["type"]: c["reason"] for c in found["status"]["conditions"]}
                assert reasons["Ready"] == "Serving", reasons
                return True

            await eventually(serves)
            await api.patch_service(namespace, "a", {"canary": None, "exposure": None})

            async def pruned() -> bool:
                kinds = await api.objects(namespace, "a")
                return not {("Ingress", "a"), ("Deployment", "a-canary")} & kinds.keys()

            await eventually(pruned)
        assert "forbidden" not in log.read_text().lower(), log.read_text()
        account = f"system:serviceaccount:{namespace}:{namespace}"
        for verb, group, resource in FORBIDDEN:
            assert not await may(api, account, verb, group, resource, namespace), resource
        assert await may(api, account, "list", "", "pods", namespace)
        assert not await may(api, account, "list", "", "pods", "default"), "another's namespace"
        # And a router may see where its replicas are, and nothing else.
        router = f"system:serviceaccount:{namespace}:a-router"
        assert await may(api, router, "list", "discovery.k8s.io", "endpointslices", namespace)
        assert not await may(api, router, "get", "", "secrets", namespace)
        assert not await may(api, router, "list", "", "pods", namespace)
    finally:
        uninstall(helm, control_plane, namespace)


async def test_a_folder_of_the_node_needs_a_privileged_namespace(
    api: Api, helm: str, control_plane: Path, namespace: str
) -> None:
    model = {"uri": "hf://org/name", "storage": {"hostPath": "/models"}}
    for body in (
        make(name="a", model=model),
        make(name="a", canary={"weight": 1, "model": model}),
    ):
        install(helm, control_plane, namespace)
        try:

            async def refused(body: dict[str, Any] = body) -> bool:
                try:
                    made = await api.create(SERVICES, namespace, body)
                except ApiError as error:
                    return "use model.storage.claim" in error.message and error.code == 403
                await api.delete(SERVICES, namespace, "a", made["metadata"]["uid"])
                return False

            await eventually(refused)  # a policy is in force a moment after it was made
            label = {"pod-security.kubernetes.io/enforce": "privileged"}
            patch = {"metadata": {"labels": label}}
            path = f"/api/v1/namespaces/{namespace}"
            merge = "application/merge-patch+json"
            await api.request("PATCH", path, body=patch, content_type=merge)

            async def taken(body: dict[str, Any] = body) -> bool:
                made = await api.create(SERVICES, namespace, body)
                await api.delete(SERVICES, namespace, "a", made["metadata"]["uid"])
                return True

            await eventually(taken)
            label["pod-security.kubernetes.io/enforce"] = "restricted"
            await api.request("PATCH", path, body=patch, content_type=merge)
        finally:
            uninstall(helm, control_plane, namespace)


def test_unknown_values_are_refused(helm: str) -> None:
    command = [helm, "template", "a", ROOT / "charts/pagelet", "--set=operator.replica=2"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode != 0
    assert "replica" in result.stderr
