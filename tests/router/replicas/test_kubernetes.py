"""Discovery through EndpointSlices: a real API server, and one that misbehaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from cluster.certificates import Authority
from cluster.kubectl import Kubectl
from pagelet.protocol.router import KubernetesService
from pagelet.router.replicas.discovery import Endpoint
from pagelet.router.replicas.kubernetes import ApiServer, EndpointSliceDiscovery

SERVICE = KubernetesService(namespace="default", name="agents")
LONG = 3600.0
"""Seconds between LISTs where only the watch can tell of a change in time."""


def slice_of(*addresses: str) -> dict[str, object]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "agents-1",
            "resourceVersion": "5",
            "labels": {"kubernetes.io/service-name": "agents"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]} for address in addresses],
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
    }


def endpoints_at(*addresses: str) -> list[Endpoint]:
    return [Endpoint(f"{address}:8000", f"http://{address}:8000") for address in addresses]


async def next_set(sets: AsyncIterator[Sequence[Endpoint]]) -> Sequence[Endpoint]:
    async with asyncio.timeout(60):
        return await anext(sets)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class FakeApiServer:
    """Answers LIST with `listing`, and a watch with `events` and then silence."""

    def __init__(self) -> None:
        self.listing = slice_of("10.0.0.1")
        self.events: list[object] = []
        self.status = b"200 OK"
        self.lists = 0
        self.tokens: list[str] = []
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                token = head.decode().partition("Authorization: Bearer ")[2].splitlines()[0]
                self.tokens.append(token)
                if b"watch=true" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                    for event in self.events:
                        writer.write(json.dumps(event).encode() + b"\n")
                    await reader.read()
                    return
                self.lists += 1
                listing = {"metadata": {"resourceVersion": "5"}, "items": [self.listing]}
                body = json.dumps(listing).encode()
                writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n" % (self.status, len(body)))
                writer.write(b"\r\n" + body)
        except asyncio.IncompleteReadError:
            pass  # the client has gone
        finally:
            writer.close()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A service account's folder, with a token that nobody checks."""
    authority = Authority(tmp_path / "pki")
    (tmp_path / "ca.crt").write_bytes(authority.certificate.read_bytes())
    (tmp_path / "token").write_text("first\n")
    return tmp_path


async def test_a_change_that_the_watch_did_not_tell_heals_at_the_next_list(account: Path) -> None:
    fake = FakeApiServer()
    async with fake.running():
        discovery = EndpointSliceDiscovery(SERVICE, ApiServer(fake.url, account), 0.2)
        async with aclosing(discovery.watch()) as sets:
            assert await next_set(sets) == endpoints_at("10.0.0.1")
            fake.listing = slice_of("10.0.0.2", "10.0.0.3")
            assert await next_set(sets) == endpoints_at("10.0.0.2", "10.0.0.3")


async def test_the_watch_tells_at_once(account: Path) -> None:
    fake = FakeApiServer()
    fake.events = [
        {"type": "MODIFIED", "object": slice_of("10.0.0.1", "10.0.0.2")},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "6"}}},
        {"type": "DELETED", "object": slice_of("10.0.0.1", "10.0.0.2")},
    ]
    async with fake.running():
        discovery = EndpointSliceDiscovery(SERVICE, ApiServer(fake.url, account), LONG)
        async with aclosing(discovery.watch()) as sets:
            assert await next_set(sets) == endpoints_at("10.0.0.1")
            assert await next_set(sets) == endpoints_at("10.0.0.1", "10.0.0.2")
            assert await next_set(sets) == []
    assert fake.lists == 1


async def test_an_api_server_in_trouble_changes_nothing(
    account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeApiServer()
    async with fake.running():
        discovery = EndpointSliceDiscovery(SERVICE, ApiServer(fake.url, account), 0.2)
        async with aclosing(discovery.watch()) as sets:
            assert await next_set(sets) == endpoints_at("10.0.0.1")
            fake.status = b"500 Internal Server Error"
            fake.listing = slice_of()
            following = asyncio.ensure_future(anext(sets))
            await until(lambda: fake.lists >= 4)
            assert not following.done()
            fake.status = b"200 OK"
            fake.listing = slice_of("10.0.0.9")
            async with asyncio.timeout(60):
                assert await following == endpoints_at("10.0.0.9")
    told = [record.message for record in caplog.records if "stay in use" in record.message]
    assert len(told) == 1, "one warning for one trouble"
    assert "500" in told[0]


async def test_the_token_is_read_again(account: Path) -> None:
    fake = FakeApiServer()
    async with fake.running():
        discovery = EndpointSliceDiscovery(SERVICE, ApiServer(fake.url, account), 0.2)
        async with aclosing(discovery.watch()) as sets:
            await next_set(sets)
            (account / "token").write_text("second\n")
            fake.listing = slice_of("10.0.0.2")
            await next_set(sets)
    assert fake.tokens[0] == "first"
    assert fake.tokens[-1] == "second"


def test_outside_of_a_pod_it_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match="elsewhere use `replicas` or `replicas_file`"):
        ApiServer.of_pod()


ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "router"},
    "rules": [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ],
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "router"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "router"},
    "subjects": [{"kind": "ServiceAccount", "name": "router"}],
}


@pytest.fixture
def cluster(control_plane: Path) -> Iterator[Kubectl]:
    """A namespace of its own on a real API server, with an account `router`."""
    admin = Kubectl(control_plane)
    admin.run("create", "namespace", "discovery")
    kubectl = Kubectl(control_plane, "discovery")
    kubectl.run("create", "serviceaccount", "router")
    yield kubectl
    admin.run("delete", "namespace", "discovery", "--wait=false")


def real_api_server(cluster: Kubectl, account: Path) -> ApiServer:
    """As the account `router`, with a token and the authority that a pod would be given."""
    configuration = cluster.get("configmap", "kube-root-ca.crt")
    (account / "ca.crt").write_text(configuration["data"]["ca.crt"])
    (account / "token").write_text(cluster.run("create", "token", "router"))
    server = cluster.run("config", "view", "--output=jsonpath={.clusters[0].cluster.server}")
    return ApiServer(server, account)


async def test_a_real_api_server(
    cluster: Kubectl, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = KubernetesService(namespace=cluster.namespace, name="agents")
    discovery = EndpointSliceDiscovery(service, real_api_server(cluster, tmp_path), LONG)

    def apply(*addresses: str) -> None:
        piece = slice_of(*addresses)
        assert isinstance(piece["metadata"], dict)
        del piece["metadata"]["resourceVersion"]
        cluster.apply(piece)

    apply("10.0.0.1")
    async with aclosing(discovery.watch()) as sets:
        following = asyncio.ensure_future(anext(sets))
        await until(lambda: bool(caplog.records))  # forbidden, until there is a role
        assert "grant it get, list and watch on endpointslices" in caplog.records[0].message
        await asyncio.to_thread(cluster.apply, ROLE, BINDING)
        async with asyncio.timeout(60):
            assert await following == endpoints_at("10.0.0.1")
        await asyncio.to_thread(apply, "10.0.0.1", "10.0.0.2")
        assert await next_set(sets) == endpoints_at("10.0.0.1", "10.0.0.2")
        await asyncio.to_thread(apply, "10.0.0.2")
        assert await next_set(sets) == endpoints_at("10.0.0.2")
        await asyncio.to_thread(cluster.run, "delete", "endpointslice", "agents-1")
        assert await next_set(sets) == []
