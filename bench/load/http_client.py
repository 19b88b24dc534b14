"""A lean HTTP/1.1 client for streamed answers: one core must be able to read them from hundreds of
streams without being what is measured. The bytes are parsed by `httptools` (llhttp); connections
are kept and used again, as other load generators and most clients do.
"""

import asyncio
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import cast

import httptools

BodySink = Callable[[bytes, float], None]
"""Gets bytes of the body as they come, and the `time.perf_counter()` at which they came."""
_ERROR_BODY_BYTES = 2000


class RequestFailed(Exception):
    """A request got no good answer. `kind` is short, the same for failures of the same cause."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


class HttpClient:
    """Requests to one server. Use it in one event loop."""

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
        self._idle: list[_Connection] = []

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

    async def _exchange(self, request: bytes, sink: BodySink) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    reused, connection = await self._connection()
                    try:
                        await connection.exchange(request, sink)
                        break
                    except _NoAnswer:
                        # The server may close a kept connection just when it is used again.
                        if not reused:
                            raise RequestFailed("connection closed before an answer") from None
                    finally:
                        self._release(connection)
        except TimeoutError:
            raise RequestFailed("timeout", f"no end within {self._timeout:g} s") from None

    async def _connection(self) -> tuple[bool, "_Connection"]:
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return True, connection
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                _Connection, self._host, self._port, ssl=self._tls
            )
        except OSError as error:
            raise RequestFailed("cannot connect", str(error)) from error
        return False, connection

    def _release(self, connection: "_Connection") -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.abort()


class _NoAnswer(Exception):
    """The connection was lost before the first byte of an answer."""


class _Connection(asyncio.Protocol):
    """One connection, with at most one request on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._usable = True
        self._sink: BodySink = lambda data, now: None
        self._parser = httptools.HttpResponseParser(self)
        self._begun = self._complete = self._framed = False
        self._status = 0
        self._reason = b""
        self._body: list[bytes] = []

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._usable and self._done is None

    async def exchange(self, request: bytes, sink: BodySink) -> None:
        """Raises `_NoAnswer`, `RequestFailed`, or what `sink` raises."""
        assert self._transport is not None
        assert self.usable
        self._sink = sink
        self._begun = self._complete = self._framed = False
        self._status = 0
        self._reason = b""
        self._body.clear()
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._usable = self._usable and self._complete  # not in the middle of an answer
            self._done = None

    def abort(self) -> None:
        """Closes it at once."""
        self._usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._begun = True
        try:
            self._parser.feed_data(data)
            self._deliver(now)
        except httptools.HttpParserError as error:
            self._finish(RequestFailed("malformed HTTP", f"{error} in {data[:100]!r}"))
        except Exception as error:  # whatever the sink finds wrong ends the request
            self._finish(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._usable = False
        if not self._begun:
            self._finish(_NoAnswer())
        elif self._is_error:
            self._finish(self._status_failure())
        elif self._status and not self._framed and exc is None:
            self._finish(None)  # a body without a length ends with the connection
        else:
            self._finish(RequestFailed("connection cut", str(exc or "in the middle of an answer")))

    # Called by the parser.

    def on_status(self, status: bytes) -> None:
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._complete = True
        self._usable = self._usable and self._parser.should_keep_alive()

    # From here on: what the parser found.

    @property
    def _is_error(self) -> bool:
        return self._status != 0 and not 200 <= self._status < 300

    def _deliver(self, now: float) -> None:
        if self._is_error:
            if self._complete or sum(map(len, self._body)) > _ERROR_BODY_BYTES:
                self._finish(self._status_failure())
            return
        if self._body:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            self._sink(body, now)
        if self._complete:
            self._finish(None)

    def _status_failure(self) -> RequestFailed:
        text = b"".join(self._body)[:_ERROR_BODY_BYTES].decode(errors="replace")
        reason = self._reason.decode(errors="replace")
        return RequestFailed(f"HTTP {self._status} {reason}".strip(), text)

    def _finish(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)
