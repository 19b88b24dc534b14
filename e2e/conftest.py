"""The cluster that all scenarios share, with Pagelet's images and its operator on it."""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cache import say
from cluster.images import PAGELET_IMAGES, SECOND_AGENT_IMAGE, pagelet_archives
from cluster.kubectl import CommandFailed, Kubectl
from cluster.local import CannotRun, Cluster, check_machine, local_cluster
from cluster.packages import PackagesMissing
from cluster.programs import CannotBuild
from cluster.sandbox import SandboxFailed
from cluster.shell import Shell

SYSTEM = "pagelet-system"
"""The namespace of the operator."""


@pytest.fixture(scope="session")
def local() -> Iterator[Cluster | None]:
    """A cluster of our own; None where `E2E_KUBECONFIG` names another."""
    if os.environ.get("E2E_KUBECONFIG"):
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            check_machine()
            archives = pagelet_archives()
            cluster = stack.enter_context(local_cluster("e2e", nodes=2))
        except (CannotRun, PackagesMissing, CannotBuild, SandboxFailed) as error:
            say(f"NO END-TO-END TEST RUNS: {error}")
            pytest.skip(f"there is no cluster here: {error}")
        say("Loading the images on both nodes")
        cluster.load(*archives)
        cluster.tag(PAGELET_IMAGES["agent"], SECOND_AGENT_IMAGE)
        yield cluster


@pytest.fixture(scope="session")
def kubeconfig(local: Cluster | None) -> Path:
    """Of the cluster's administrator."""
    return Path(os.environ["E2E_KUBECONFIG"]) if local is None else local.kubeconfig


@pytest.fixture(scope="session")
def shell(kubeconfig: Path) -> Shell:
    """For commands that a reader shall see."""
    return Shell(kubeconfig)


@pytest.fixture(scope="session")
def operator(shell: Shell, kubeconfig: Path) -> Iterator[Kubectl]:
    """Pagelet's operator, installed by its chart for all namespaces; kubectl in its namespace."""
    images = dict(PAGELET_IMAGES)
    if prefix := os.environ.get("E2E_IMAGES"):  # such as registry.example/pagelet
        images = {name: f"{prefix}/{name}" for name in images}
    values = " ".join(f"--set images.{name}={image}" for name, image in images.items())
    shell.run(
        f"helm install pagelet charts/pagelet --namespace {SYSTEM} --create-namespace --wait "
        f"--timeout 5m {values}"
    )
    yield Kubectl(kubeconfig, SYSTEM)
    shell.run(f"helm uninstall pagelet --namespace {SYSTEM} --wait")


@pytest.fixture
def kubectl(
    kubeconfig: Path, request: pytest.FixtureRequest, operator: Kubectl
) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own. After a failure it shows what was there."""
    words = re.findall(r"[a-z0-9]+", request.node.name.removeprefix("test_"))
    namespace = f"{'-'.join(words)[:40]}-{secrets.token_hex(3)}"
    everywhere = Kubectl(kubeconfig)
    everywhere.run("create", "namespace", namespace)
    made = Kubectl(kubeconfig, namespace)
    failed_before = request.session.testsfailed
    yield made
    if request.session.testsfailed > failed_before:
        _show_state(made, operator)
    everywhere.run("delete", "namespace", namespace, "--wait=false")


def _show_state(kubectl: Kubectl, operator: Kubectl) -> None:
    for who, *arguments in (
        (kubectl, "get", "inferenceservices,pods,deployments,endpointslices", "--output=wide"),
        (kubectl, "get", "events", "--sort-by=.lastTimestamp"),
        (kubectl, "logs", "--prefix", "--tail=15", "--selector=app.kubernetes.io/name=pagelet"),
        (operator, "logs", "--prefix", "--tail=30", "--selector=app.kubernetes.io/name"),
    ):
        try:
            print(who.run(*arguments))
        except CommandFailed as error:
            print(error)
