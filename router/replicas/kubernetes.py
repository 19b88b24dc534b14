"""Replicas from a Kubernetes Service's EndpointSlices.

The truth is a LIST at an interval; the watch in between only makes changes known sooner. So a watch
that is silent, or that lost an event, heals within the interval, and an API server that is away
changes nothing: the last known set stays in force.
"""

import asyncio
import logging
import os
import random
import ssl
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Container, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pagelet.protocol.router import KubernetesService
from pagelet.router.replicas.discovery import Endpoint
from pagelet.router.upstream.client import Response, Upstream, UpstreamTimeout
from pagelet.router.upstream.connection import Headers, UpstreamError

_log = logging.getLogger(__name__)

RELIST_SECONDS: Final = 15.0
_CONNECT_SECONDS: Final = 3.0
_LIST_SECONDS: Final = 10.0
"""For an answer to LIST, or for the head of a watch's."""
_RETRY_SECONDS: Final = 1.0
_LONGEST_RETRY_SECONDS: Final = 10.0
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubernetesError(Exception):
    """The API server did not give what was asked for; the message says what to change."""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    """Unknown counts as ready, as the API says."""
    terminating: bool | None = None


class _TargetRef(msgspec.Struct):
    uid: str = ""


class _SliceEndpoint(msgspec.Struct, rename="camel"):
    addresses: list[str]
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)
    target_ref: _TargetRef | None = None


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class EndpointSlice(msgspec.Struct, rename="camel"):
    """What matters here of `discovery.k8s.io/v1` EndpointSlice."""

    metadata: _Metadata
    endpoints: list[_SliceEndpoint] | None = None
    ports: list[_Port] | None = None


class _SliceList(msgspec.Struct):
    metadata: _Metadata
    items: list[EndpointSlice] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


def replica_endpoints(
    slices: Iterable[EndpointSlice], port: str | int, known: Container[str] = ()
) -> list[Endpoint]:
    """The replicas that are ready, and those that terminate, each once, in the order of their ids.

    A replica is its pod, by UID: a pod that comes back with the address of another is another.
    `known` ones stay when they are not ready any more, and the router's own probes tell of their
    health: when the control plane loses sight of a node, as of all nodes while its API server is
    away, it calls their pods not ready, and they serve on. Those that terminate take no requests,
    and still have what they keep for clients.
    """
    found: dict[str, Endpoint] = {}
    for piece in slices:
        number = _port_number(piece.ports or (), port)
        for endpoint in piece.endpoints or ():
            conditions = endpoint.conditions
            if number is None:
                continue
            address = endpoint.addresses[0]
            host = f"[{address}]" if ":" in address else address
            uid = endpoint.target_ref.uid if endpoint.target_ref is not None else ""
            made = Endpoint(
                uid or f"{address}:{number}",
                f"http://{host}:{number}",
                takes_requests=not conditions.terminating,
            )
            if made.takes_requests and conditions.ready is False and made.id not in known:
                continue
            # A pod moves between slices, or has two addresses.
            before = found.setdefault(made.id, made)
            if made.takes_requests and not before.takes_requests:
                found[made.id] = made
    return sorted(found.values(), key=lambda endpoint: endpoint.id)


def _port_number(ports: Iterable[_Port], wanted: str | int) -> int | None:
    for port in ports:
        if wanted == (port.port if isinstance(wanted, int) else port.name):
            return port.port
    return None


class ApiServer:
    """The cluster's API server, as a pod reaches it with its service account.

    The token and the authority's certificate are read for every connection: both are replaced
    while the pod runs.
    """

    def __init__(self, url: str, account: Path) -> None:
        """`account` is a folder with the files `token` and `ca.crt`."""
        self._url = url
        self._account = account

    @classmethod
    def of_pod(cls) -> "ApiServer":
        """Raises `ValueError` where this process runs in no pod, or without its account."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if host is None or not (_ACCOUNT / "token").exists():
            raise ValueError(
                "a pool with a `service` needs a pod with a service account's token (set "
                "automountServiceAccountToken: true); elsewhere use `replicas` or `replicas_file`"
            )
        return cls(
            f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", _ACCOUNT
        )

    def connect(self) -> tuple[Upstream, Headers]:
        """A client, and the headers that authorise it. Raises `OSError` if a file is unreadable."""
        tls = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        token = (self._account / "token").read_bytes().strip()
        headers = [(b"Authorization", b"Bearer " + token), (b"Accept", b"application/json")]
        return Upstream(self._url, _CONNECT_SECONDS, tls=tls), headers


class EndpointSliceDiscovery:
    """The pods of a Service that are ready, were, or terminate. See `Discovery`."""

    def __init__(
        self, service: KubernetesService, api: ApiServer, relist_seconds: float = RELIST_SECONDS
    ) -> None:
        self._service = service
        self._api = api
        self._relist_seconds = relist_seconds
        self._slices: dict[str, EndpointSlice] = {}

    async def watch(self) -> AsyncGenerator[Sequence[Endpoint]]:
        """See `Discovery`."""
        told: list[Endpoint] | None = None
        retry = _RETRY_SECONDS
        failed = ""
        while True:
            try:
                async for _ in self._changes():
                    failed, retry = "", _RETRY_SECONDS
                    known = {endpoint.id for endpoint in told or () if endpoint.takes_requests}
                    now = replica_endpoints(self._slices.values(), self._service.port, known)
                    if now != told:
                        told = now
                        yield now
            except (KubernetesError, UpstreamError, OSError, msgspec.MsgspecError) as error:
                if str(error) != failed:
                    failed = str(error)
                    _log.warning(
                        "endpoints of %s/%s: %s; the replicas known so far stay in use",
                        self._service.namespace,
                        self._service.name,
                        error,
                    )
                await asyncio.sleep(retry * random.uniform(0.75, 1.25))
                retry = min(2 * retry, _LONGEST_RETRY_SECONDS)

    async def _changes(self) -> AsyncIterator[None]:
        """Keeps `_slices` current for one interval; yields after each change. Raises."""
        client, headers = self._api.connect()
        try:
            listed = await self._list(client, headers)
            self._slices = {piece.metadata.name: piece for piece in listed.items or ()}
            yield
            # Many routers that started together shall not all ask at the same time for ever.
            seconds = self._relist_seconds * random.uniform(0.8, 1.2)
            deadline = asyncio.get_running_loop().time() + seconds
            async for event in self._events(client, headers, listed, deadline):
                if self._apply(event):
                    yield
            # A watch may end early, as when the API server restarts.
            remaining = deadline - asyncio.get_running_loop().time()
            await asyncio.sleep(min(max(remaining, 0.0), _RETRY_SECONDS))
        finally:
            client.close()

    def _apply(self, event: _Event) -> bool:
        """Returns whether it said anything of a slice. Raises `KubernetesError` if it is one."""
        if event.type == "ERROR":  # such as 410 Gone: what it would go on from is forgotten
            raise KubernetesError(f"the watch failed: {bytes(event.object)!r}")
        piece = msgspec.json.decode(event.object, type=EndpointSlice)
        if event.type == "DELETED":
            return self._slices.pop(piece.metadata.name, None) is not None
        self._slices[piece.metadata.name] = piece
        return event.type in ("ADDED", "MODIFIED")

    async def _list(self, client: Upstream, headers: Headers) -> _SliceList:
        response = await client.send("GET", self._target({}), headers, seconds=_LIST_SECONDS)
        try:
            body = await response.read_all(_LIST_SECONDS)
            self._check(response, body)
        finally:
            response.close()
        return msgspec.json.decode(body, type=_SliceList)

    async def _events(
        self, client: Upstream, headers: Headers, listed: _SliceList, deadline: float
    ) -> AsyncIterator[_Event]:
        """What changed after `listed`, until the deadline on the loop's clock, or earlier."""
        clock = asyncio.get_running_loop().time
        query = {
            "watch": "true",
            "resourceVersion": listed.metadata.resource_version,
            "timeoutSeconds": f"{deadline - clock() + 1:.0f}",
        }
        response = await client.send("GET", self._target(query), headers, seconds=_LIST_SECONDS)
        try:
            if response.status != 200:
                self._check(response, await response.read_all(_LIST_SECONDS))
            rest = b""
            while data := await response.read(max(0.0, deadline - clock())):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    yield msgspec.json.decode(line, type=_Event)
        except UpstreamTimeout:
            return  # quiet until the deadline, or dead: the next LIST tells
        finally:
            response.close()

    def _target(self, query: dict[str, str]) -> str:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._service.namespace}/endpointslices"
        selector = f"kubernetes.io/service-name={self._service.name}"
        return f"{path}?{urllib.parse.urlencode({'labelSelector': selector, **query})}"

    def _check(self, response: Response, body: bytes) -> None:
        if response.status == 200:
            return
        said = body[:300].decode(errors="replace")
        if response.status == 403:
            raise KubernetesError(
                f"the service account may not list them; grant it get, list and watch on "
                f"endpointslices.discovery.k8s.io in {self._service.namespace}: {said}"
            )
        raise KubernetesError(f"the API server answered {response.status}: {said}")
