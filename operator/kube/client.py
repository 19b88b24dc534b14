"""The API server, as far as an operator needs it.

A client of our own over aiohttp, which kopf brings along: the generated client libraries import 700
model classes, which nobody here uses, in two seconds and 70 MB.
"""

import asyncio
import base64
import contextlib
import json
import re
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import aiohttp
import kopf
from aiohttp.http_exceptions import LineTooLong

from pagelet.operator.kube.resources import Object, Resource, resource_of

FIELD_MANAGER: Final = "pagelet-operator"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30, connect=5)
_PAGE: Final = 250
_FRESH_SECONDS: Final = 60
"""Credentials are read again after so long: a pod's token is replaced within the hour."""
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML, nearly
_ESCAPED_IN_YAML: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class ApiError(Exception):
    """What the API server answered instead of doing it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message

    @property
    def namespace_ends(self) -> bool:
        """Whether it was refused because all of the namespace is being deleted."""
        return self.code == 403 and "because it is being terminated" in self.message


class Client:
    """One API server. Close it in the end."""

    def __init__(self, login: Callable[[], kopf.ConnectionInfo]) -> None:
        self._login = login
        self._connection = login()
        self._read_at = time.monotonic()
        connector = aiohttp.TCPConnector(ssl=_tls(self._connection), limit=32)
        self._session = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT)
        self.requests = 0
        """How many were made."""

    async def close(self) -> None:
        """Ends its connections."""
        await self._session.close()

    async def get(
        self, resource: Resource, namespace: str, name: str, subresource: str | None = None
    ) -> Object:
        """One object."""
        return await self._request("GET", resource.path(namespace, name, subresource))

    async def list_all(
        self, resource: Resource, namespace: str | None, **selectors: str
    ) -> tuple[list[Object], str]:
        """All objects, page by page, and the version from which to watch them."""
        items: list[Object] = []
        query = {"limit": str(_PAGE), **selectors}
        while True:
            page = await self._request("GET", resource.path(namespace), query)
            items += page["items"]
            metadata = page["metadata"]
            if not metadata.get("continue"):
                return items, metadata["resourceVersion"]
            query["continue"] = metadata["continue"]

    async def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """One object if it is there, for those who may list the kind and not get it."""
        found, _ = await self.list_all(resource, namespace, fieldSelector=f"metadata.name={name}")
        return found[0] if found else None

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        version: str,
        seconds: int,
        **selectors: str,
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes since a version, for some seconds: `ADDED`, `MODIFIED` or `DELETED`, and the
        object. Raises ApiError, with code 410 where the version is too old."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            "allowWatchBookmarks": "true",
            **selectors,
        }
        # The API server sends a bookmark each minute: a silent connection is a dead one.
        timeout = aiohttp.ClientTimeout(total=seconds + 10, connect=5, sock_read=90)
        url = self._connection.server + resource.path(namespace)
        self.requests += 1
        async with self._session.get(
            url, params=query, headers=self._headers(), timeout=timeout, read_bufsize=1 << 20
        ) as response:
            await _raise_for_status(response)
            async for kind, found in _events(response):
                if kind == "ERROR":
                    raise _error(found)
                if kind != "BOOKMARK":
                    yield kind, found

    async def apply(self, made: Object, *, force: bool) -> Object:
        """Server-side apply. Without `force` a field that someone else has set is an ApiError with
        code 409. Unknown fields are refused."""
        metadata = made["metadata"]
        path = resource_of(made).path(metadata["namespace"], metadata["name"])
        query = {"force": str(force).lower(), "fieldValidation": "Strict"}
        return await self._patch(path, made, _APPLY, query)

    async def apply_status(self, resource: Resource, made: Object) -> Object:
        """Server-side apply of a status alone."""
        metadata = made["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"], "status")
        return await self._patch(path, made, _APPLY, {"force": "true"})

    async def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Object,
        *,
        subresource: str | None = None,
    ) -> Object:
        """A merge patch."""
        path = resource.path(namespace, name, subresource)
        return await self._patch(path, patch, "application/merge-patch+json", {})

    async def create(self, resource: Resource, namespace: str, made: Object) -> Object:
        """Makes an object."""
        return await self._request("POST", resource.path(namespace), {}, made)

    async def replace(self, resource: Resource, made: Object) -> Object:
        """Replaces an object; ApiError with code 409 if it has changed since it was read."""
        metadata = made["metadata"]
        path = resource.path(metadata["namespace"], metadata["name"])
        return await self._request("PUT", path, {}, made)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Deletes an object and what it owns; one of another identity stays. No object is fine."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        with contextlib.suppress(NotFound):
            await self._request("DELETE", resource.path(namespace, name), {}, options)

    async def _patch(
        self, path: str, body: Object, content_type: str, query: dict[str, str]
    ) -> Object:
        query = {"fieldManager": FIELD_MANAGER, **query}
        return await self._request("PATCH", path, query, body, content_type)

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        self.requests += 1
        headers = self._headers() | {"Content-Type": content_type}
        async with self._session.request(
            method,
            self._connection.server + path,
            params=query,
            data=None if body is None else encoded(body),
            headers=headers,
        ) as response:
            await _raise_for_status(response)
            try:
                answer: Object = await response.json()
            except ValueError as error:
                raise aiohttp.ClientPayloadError(f"the answer is broken: {error}") from error
            return answer

    def _headers(self) -> dict[str, str]:
        now = time.monotonic()
        if now - self._read_at > _FRESH_SECONDS:
            self._connection, self._read_at = self._login(), now
        headers: dict[str, str] = dict(self._connection.as_http_headers())
        return headers | {"Accept": "application/json", "User-Agent": FIELD_MANAGER}


class NotFound(ApiError):
    """There is no such object, or no such kind."""


class Conflict(ApiError):
    """Someone else has changed it, or owns a field of it."""


UNREACHABLE: Final = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""What requests raise while the API server is away."""


def login() -> kopf.ConnectionInfo:
    """Credentials of this pod's service account, or else of KUBECONFIG. Raises kopf.LoginError."""
    settings = kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(
        settings=settings
    )
    if found is None:
        raise kopf.LoginError("no service account here, and KUBECONFIG names no file")
    return found


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    try:
        status = json.loads(await response.read())
    except ValueError:
        status = {}
    raise _error({"code": response.status, **status} if isinstance(status, dict) else {})


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Object]]:
    lines = aiter(response.content)
    while True:
        try:
            event = json.loads(await anext(lines))
            kind, found = event["type"], event["object"]
        except StopAsyncIteration:
            return
        except (ValueError, KeyError, TypeError, LineTooLong) as error:
            raise aiohttp.ClientPayloadError(f"a line of a watch is broken: {error!r}") from error
        yield kind, found


def _error(status: Object) -> ApiError:
    code, reason = int(status.get("code", 500)), str(status.get("reason") or "Unknown")
    kind = {404: NotFound, 409: Conflict}.get(code, ApiError)
    return kind(code, reason, str(status.get("message") or f"HTTP {code}"))


def encoded(body: Object) -> bytes:
    """As JSON that YAML reads alike, which knows no character as two escapes (an emoji, say) and
    takes some only as escapes."""
    text = json.dumps(body, ensure_ascii=False)
    escaped = _ESCAPED_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return escaped.encode(errors="replace")  # half a character is none for the API server either


def _tls(connection: kopf.ConnectionInfo) -> ssl.SSLContext | bool:
    if connection.insecure:
        return False
    authority = _decoded(connection.ca_data)
    context = ssl.create_default_context(
        cafile=None if connection.ca_path is None else str(connection.ca_path),
        cadata=None if authority is None else authority.decode(),
    )
    if connection.certificate_path is not None:
        context.load_cert_chain(str(connection.certificate_path), str(connection.private_key_path))
    certificate = _decoded(connection.certificate_data)
    if certificate is not None:
        key = _decoded(connection.private_key_data) or b""
        with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads files only
            file = Path(folder, "client.pem")
            file.touch(mode=0o600)
            file.write_bytes(certificate + b"\n" + key)
            context.load_cert_chain(file)
    return context


def _decoded(data: str | bytes | None) -> bytes | None:
    return None if data is None else base64.b64decode(data)
