"""Whole exchanges with one server, timed as their bytes come: one core must be able to read answers
that stream over hundreds of connections without being what is measured."""

import asyncio
import http
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Self

from pagelet.router.upstream.connection import (
    Connection,
    ConnectionLost,
    Headers,
    MalformedAnswer,
)

BodySink = Callable[[bytes, float], None]
"""Gets bytes of the body as they come, and the `time.perf_counter()` at which they came."""
_ERROR_BODY_BYTES = 2000


class RequestFailed(Exception):
    """A request got no good answer. `kind` is short, the same for failures of the same cause."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class HttpClient:
    """Requests to one server. Use it in one event loop, and `close` it, or use it as a context."""

    def __init__(
        self, base_url: str, headers: Mapping[str, str] | None = None, timeout: float = 600.0
    ) -> None:
        """`base_url` may end with `/v1`; `timeout` is for a whole answer. Raises `ValueError`."""
        url = urllib.parse.urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if url.scheme not in ("http", "https") or not url.hostname or url.query:
            raise ValueError(f"{base_url!r} is no http:// or https:// URL of a server")
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._prefix = url.path.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        lines = {"Host": url.netloc.rpartition("@")[2], **(headers or {})}
        for name, value in lines.items():
            if any(byte in name + value for byte in "\r\n"):
                raise ValueError(f"the header {name} holds the end of a line")
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: list[Connection] = []

    async def get(self, path: str) -> bytes:
        """The whole body. Raises `RequestFailed`."""
        parts: list[bytes] = []
        request = f"GET {self._prefix}{path} HTTP/1.1\r\n{self._headers}\r\n".encode()
        await self._exchange(request, lambda data, _: parts.append(data))
        return b"".join(parts)

    async def post(self, path: str, body: bytes, sink: BodySink) -> None:
        """Sends JSON and hands the answer's body to `sink` as it comes.

        Raises `RequestFailed`, also for any status but 2xx; what `sink` raises ends the request.
        """
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        await self._exchange(head.encode() + body, sink)

    async def close(self) -> None:
        """Closes the connections that are kept."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _exchange(self, request: bytes, sink: BodySink) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    reused, connection = await self._connection()
                    answer = _Answer(sink)
                    try:
                        connection.send(request, answer)
                        await answer.done
                        return
                    except ConnectionLost as error:
                        # The server may close a kept connection just when it is used again.
                        if error.begun or not reused:
                            raise answer.failure(error) from error
                    finally:
                        self._release(connection)
        except TimeoutError:
            raise RequestFailed("timeout", f"no end within {self._timeout:g} s") from None

    async def _connection(self) -> tuple[bool, Connection]:
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return True, connection
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                Connection, self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            detail = f"{self._host}:{self._port}: {error}"
            raise RequestFailed("cannot connect", detail) from error
        return False, connection

    def _release(self, connection: Connection) -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.abort()


class _Answer:
    """Hands the body of a good answer to a sink, and keeps the beginning of a bad one's."""

    def __init__(self, sink: BodySink) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sink = sink
        self._status = 0
        self._error_body = b""

    def failure(self, error: ConnectionLost) -> RequestFailed:
        """What went wrong with it, in the words of a report."""
        if self._is_error:
            return self._status_failure()
        if isinstance(error, MalformedAnswer):
            return RequestFailed("malformed HTTP", str(error))
        kind = "connection cut" if error.begun else "connection closed before an answer"
        return RequestFailed(kind, str(error))

    # Called by the connection.

    def on_head(self, status: int, headers: Headers) -> None:
        self._status = status

    def on_body(self, data: bytes) -> None:
        if not self._is_error:
            self._sink(data, time.perf_counter())
            return
        self._error_body += data
        if len(self._error_body) > _ERROR_BODY_BYTES:
            raise self._status_failure()

    def on_end(self, error: Exception | None) -> None:
        if error is None and self._is_error:
            error = self._status_failure()
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    @property
    def _is_error(self) -> bool:
        return self._status != 0 and not 200 <= self._status < 300

    def _status_failure(self) -> RequestFailed:
        text = self._error_body[:_ERROR_BODY_BYTES].decode(errors="replace")
        known = self._status in set(http.HTTPStatus)
        phrase = http.HTTPStatus(self._status).phrase if known else ""
        return RequestFailed(f"HTTP {self._status} {phrase}".strip(), text)
