"""The chart as Helm installs it: what the operator may do, and what a namespace is refused."""

import base64
import contextlib
import dataclasses
import itertools
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.kubectl import helm_program
from cluster.programs import HELM, is_built
from pagelet.operator.kube.client import ApiError
from pagelet.operator.kube.resources import PODS, SERVICES, Resource
from support.broken_services import service as make
from support.cluster import Api, eventually, running_operator

ROOT = Path(__file__).parents[2]
ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
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


async def token_of(api: Api, namespace: str, account: str) -> str:
    """Of a service account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
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


@contextlib.asynccontextmanager
async def as_account(api: Api, namespace: str, account: str) -> AsyncIterator[Api]:
    """The cluster as one of its service accounts has it."""
    token = await token_of(api, namespace, account)
    them = dataclasses.replace(
        api.connection,
        token=token,
        certificate_path=None,
        certificate_data=None,
        private_key_path=None,
        private_key_data=None,
    )
    client = Api(lambda: them)
    yield client
    await client.close()


async def rights(api: Api, namespace: str) -> set[tuple[str, str, str, str]]:
    """All that a client may do with resources of a namespace: group, kind, verb, name."""
    review = await api.request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        body={"spec": {"namespace": namespace}},
    )
    return flat(review["status"]["resourceRules"])


def flat(rules: list[dict[str, Any]]) -> set[tuple[str, str, str, str]]:
    return {
        right
        for rule in rules
        for right in itertools.product(
            rule.get("apiGroups", [""]),
            rule["resources"],
            rule["verbs"],
            rule.get("resourceNames") or ["any"],
        )
    }


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
        token = await token_of(api, namespace, namespace)
        own = kubeconfig_with(token, control_plane, tmp_path / "kubeconfig")
        log = tmp_path / "log"
        spec: dict[str, Any] = {"exposure": {"ingress": {"host": "a.example.com"}}}
        canary = {"weight": 1, "engine": {"nodes": 2, "tensorParallelSize": 2}}
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
                return not {("Ingress", "a"), ("StatefulSet", "a-canary-0")} & kinds.keys()

            await eventually(pruned)
        assert "forbidden" not in log.read_text().lower(), log.read_text()
        account = f"system:serviceaccount:{namespace}:{namespace}"
        for verb, group, resource in FORBIDDEN:
            assert not await may(api, account, verb, group, resource, namespace), resource
        assert await may(api, account, "list", "", "pods", namespace)
        assert not await may(api, account, "list", "", "pods", "default"), "another's namespace"
    finally:
        uninstall(helm, control_plane, namespace)


async def test_nobody_has_a_right_that_the_chart_does_not_name(
    api: Api, helm: str, control_plane: Path, namespace: str, tmp_path: Path
) -> None:
    """What the API server says of each account, beyond what it lets any account do; and what it
    does when a pod's token asks for a Secret."""
    install(helm, control_plane, namespace, f"namespaces={{{namespace}}}")
    secrets = Resource("v1", "Secret", "secrets")
    slices = ("discovery.k8s.io", "endpointslices")
    try:
        for kind, name in ((ACCOUNTS, "anyone"), (secrets, "tenants")):
            made = {"apiVersion": "v1", "kind": kind.kind, "metadata": {"name": name}}
            await api.create(kind, namespace, made)
        with running_operator(control_plane, namespace, tmp_path / "log"):
            await api.create(SERVICES, namespace, make(name="a"))
            router = f"system:serviceaccount:{namespace}:a-router"
            # A right is in force a moment after it was given.
            await eventually(lambda: may(api, router, "list", *slices, namespace))
        found = {}
        for account in ("anyone", namespace, "a-router", "a-agent"):
            async with as_account(api, namespace, account) as client:
                found[account] = await rights(client, namespace)
                if account == namespace:
                    elsewhere = await rights(client, "default") - found["anyone"]
                for asked in (
                    client.get(secrets, namespace, "tenants"),
                    client.list_all(secrets, namespace),
                    client.list_all(secrets, None),
                    client.list_all(secrets, "kube-system"),
                ):
                    with pytest.raises(ApiError, match="forbidden"):
                        await asked
        beyond = {account: has - found["anyone"] for account, has in found.items()}
        named = [
            made["rules"]
            for made in rendered(helm, namespace, f"namespaces={{{namespace}}}")
            if made and made["kind"] == "Role"
        ]
        assert len(named) == 2
        assert beyond[namespace] == set().union(*map(flat, named))
        assert not {right for right in beyond[namespace] if "*" in right}
        assert elsewhere == set()
        assert beyond["a-router"] == {(*slices, verb, "any") for verb in ("list", "watch")}
        assert beyond["a-agent"] == set()

        async def tokens() -> dict[str, bool]:
            """Whether the pods of an account have its token."""
            pods, _ = await api.list_all(PODS, namespace, labelSelector="pagelet.dev/service=a")
            specs = [pod["spec"] for pod in pods]
            assert len(specs) == 3
            return {
                spec["serviceAccountName"]: any("projected" in v for v in spec["volumes"])
                for spec in specs
            }

        assert await eventually(tokens) == {"a-agent": False, "a-router": True}
    finally:
        uninstall(helm, control_plane, namespace)


def rendered(helm: str, namespace: str, *values: str) -> list[dict[str, Any]]:
    """The chart's objects."""
    settings = [f"--set={value}" for value in (f"nameOverride={namespace}", *values)]
    command = [helm, "template", namespace, ROOT / "charts/pagelet", *settings, "-n", namespace]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return list(yaml.safe_load_all(result.stdout))


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


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("operator.replica=2", "'/operator': additional properties 'replica' not allowed"),
        ("operator=null", "missing property 'operator'"),
        ("operator.replicas=null", "'/operator': missing property 'replicas'"),
        ("monitoringNamespaceLabels=null", "missing property 'monitoringNamespaceLabels'"),
        ("operator.relistSeconds=1000000", "'/operator/relistSeconds': maximum"),
        ("nameOverride=Other", "'/nameOverride': 'Other' does not match"),
    ],
)
def test_wrong_values_are_refused_with_their_path(helm: str, value: str, words: str) -> None:
    command = [helm, "template", "a", ROOT / "charts/pagelet", f"--set={value}"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode != 0
    assert words in result.stderr
