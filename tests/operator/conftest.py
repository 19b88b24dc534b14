"""What the tests of the operator share: an API server, and a namespace of each test's own."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import kopf
import pytest

from pagelet.operator.kube.client import NotFound
from pagelet.operator.planning.context import Context
from pagelet.protocol.inference_service.crd import custom_resource_definition
from support.cluster import Api


@pytest.fixture
def context() -> Context:
    """An installation."""
    return Context(agent_image="agent:1", router_image="router:1")


@pytest.fixture
async def api(control_plane: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    """The cluster, which has our kind."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane))
    api = Api(lambda: kopf.login_with_kubeconfig(settings=kopf.OperatorSettings()))
    try:
        await api.install(custom_resource_definition())
        yield api
    finally:
        await api.close()


@pytest.fixture
async def namespace(api: Api) -> AsyncIterator[str]:
    """A new one."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    yield name
    with contextlib.suppress(NotFound):
        await api.request("DELETE", f"/api/v1/namespaces/{name}")
