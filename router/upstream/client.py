"""A lean HTTP/1.1 client for one server: connections are kept and used again, answers are read as
they come, and every wait has a bound."""

import asyncio
import math
import ssl
import urllib.parse
from collections import deque
from collections.abc import Iterable

from pagelet.router.upstream.connection import (
    Connection,
    Headers,
    UpstreamError,
)

_MOST_UNREAD = 256 << 10
"""Bytes of an answer that wait for a slow client before its server has to wait, too."""
_MOST_BODY_BYTES = 256 << 20
"""Of an answer that is read as a whole, and so held in memory."""
_KEPT_SECONDS = 4.0
"""Of idleness: servers close connections after 5 s (uvicorn) or more, and a request on one that is
just being closed is lost."""


class ConnectFailed(UpstreamError):
    """No connection: nothing was sent."""


class ConnectRefused(ConnectFailed):
    """Nobody listens there: the server has ended, or has not begun."""


class UpstreamTimeout(UpstreamError):
    """The server was silent for too long."""


class AnswerTooLarge(UpstreamError):
    """The answer does not end."""


class _TimeIsUp(Exception):
    """Of a wait."""


class Response:
    """An answer whose head has come. Whoever has it must `close` it, however it ends."""

    def __init__(self, upstream: "Upstream", connection: Connection) -> None:
        self.status = 0
        self.headers: Headers = []
        self.can_move = True
        """Whether the answer can be had elsewhere if the server leaves."""
        self._upstream = upstream
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self.last_activity = self._loop.time()
        """When something came last, on the event loop's clock."""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wait_ends = self._timer_ends = math.inf

    @property
    def at_end(self) -> bool:
        """Whether all of it has come and was read."""
        return self._ended and self._error is None and not self._chunks

    def header(self, name: bytes) -> bytes | None:
        """The first header of a name, which is in lower case."""
        return next((value for known, value in self.headers if known == name), None)

    async def read(self, seconds: float) -> bytes:
        """What has come since the last call, at least one byte; empty at the end.

        Raises `ConnectionLost`, or `UpstreamTimeout` after so many seconds of silence.
        """
        while not self._chunks:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return b""
            await self._wait(seconds, "nothing came from the server")
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._unread = 0
        if self._paused:
            self._paused = False
            self._connection.resume()
        return data

    async def read_all(self, seconds: float, most_bytes: int = _MOST_BODY_BYTES) -> bytes:
        """The whole body, or what is left of it. Raises as `read` does, and `AnswerTooLarge`."""
        parts, size = [], 0
        while data := await self.read(seconds):
            parts.append(data)
            size += len(data)
            if size > most_bytes:
                raise AnswerTooLarge(f"the answer has more than {most_bytes} bytes")
        return b"".join(parts)

    async def wait_for_head(self, seconds: float) -> None:
        """Until there is a status. Raises as `read` does."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait(seconds, "the server's answer did not begin")

    def interrupt(self, error: UpstreamError) -> None:
        """Ends it as if the server had failed; what has come can still be read."""
        if not self._ended:
            self._connection.abort()
            self.on_end(error)

    def close(self) -> None:
        """Lets go of it. What is still to come is cut off, so that the server can stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._upstream.release(self, self._connection if self._ended else None)
        if not self._ended:
            self._connection.abort()

    # Called by the connection.

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._wake()

    def on_body(self, data: bytes) -> None:
        self.last_activity = self._loop.time()
        self._chunks.append(data)
        self._unread += len(data)
        if self._unread > _MOST_UNREAD and not self._paused:
            self._paused = True
            self._connection.pause()
        self._wake()

    def on_end(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, seconds: float, complaint: str) -> None:
        # A timer for each chunk, let alone asyncio.timeout, would cost as much as the rest of its
        # way: one stays, looks when it is due whether it still is, and else sets itself again.
        self._waiter = waiter = self._loop.create_future()
        self._wait_ends = self._loop.time() + seconds
        if self._timer is None or self._timer_ends > self._wait_ends:
            self._set_timer()
        try:
            await waiter
        except _TimeIsUp:
            raise UpstreamTimeout(f"{complaint} within {seconds:g} s") from None
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ends = self._wait_ends
        self._timer = self._loop.call_at(self._timer_ends, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._wait_ends:
            self._set_timer()
        else:
            self._waiter.set_exception(_TimeIsUp())


class Upstream:
    """Requests to one server, from one event loop."""

    def __init__(
        self, base_url: str, connect_timeout: float, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """`base_url` may end with a path, which goes before that of each request. `tls` replaces
        the system's authorities for an https URL. Raises `ValueError` if it is no URL of a
        server."""
        url = urllib.parse.urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise ValueError(
                f"{base_url!r} is no URL of a server; write it as http://HOST:PORT or https://..."
            )
        if "@" in url.netloc:  # it would be told to clients, as the replica's id
            raise ValueError(
                f"the URL of {url.hostname} has a user or password, which is sent to no replica: "
                "leave it out; a key that replicas ask for goes into --replica-api-key-file"
            )
        self.host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if url.scheme == "https" else None
        self._prefix = url.path.rstrip("/").removesuffix("/v1").encode()
        self._host_line = b"Host: " + url.netloc.encode("idna") + b"\r\n"
        self._connect_timeout = connect_timeout
        self._idle: list[tuple[float, Connection]] = []  # since when, and last used last
        self._open: set[Response] = set()
        self._closed = False

    async def send(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes = b"",
        *,
        seconds: float,
    ) -> Response:
        """Sends a request and waits at most so many seconds until its answer begins. `target` is
        a path, perhaps with a query; host and length are added to the headers.

        Raises `ConnectFailed` (`ConnectRefused` is one), `ConnectionLost` or `UpstreamTimeout`.
        """
        head = [f"{method} ".encode(), self._prefix, target.encode("latin-1"), b" HTTP/1.1\r\n"]
        head.append(self._host_line)
        for name, value in headers:
            head += (name, b": ", value, b"\r\n")
        if body or method == "POST":
            head.append(b"Content-Length: %d\r\n" % len(body))
        head += (b"\r\n", body)
        request = b"".join(head)
        connection = await self._connection()
        response = Response(self, connection)
        self._open.add(response)
        connection.send(request, response)
        try:
            await response.wait_for_head(seconds)
        except BaseException:
            response.close()
            raise
        return response

    def interrupt_silent(self, error: UpstreamError, since: float) -> None:
        """Ends the answers to which nothing was added after `since` as if the server had failed."""
        for response in list(self._open):
            if response.last_activity <= since:
                response.interrupt(error)

    def move(self, error: UpstreamError) -> None:
        """Ends the answers that can be had elsewhere as if the server had failed."""
        for response in list(self._open):
            if response.can_move:
                response.interrupt(error)

    def release(self, response: Response, connection: Connection | None) -> None:
        """Forgets an answer, and keeps its connection, if given, for the next request; once there
        are no more, it is closed."""
        if response not in self._open:
            return
        self._open.discard(response)
        if connection is None or not connection.usable:
            return
        if self._closed:
            connection.abort()
        else:
            self._idle.append((asyncio.get_running_loop().time(), connection))

    def close(self) -> None:
        """Closes the connections that are kept, and keeps none from now on."""
        self._closed = True
        for _, connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        fresh = loop.time() - _KEPT_SECONDS
        while self._idle:
            since, connection = self._idle.pop()
            if connection.usable and since >= fresh:
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(
                    Connection, self.host, self._port, ssl=self._tls
                )
        except TimeoutError:
            failure = f"cannot connect within {self._connect_timeout:g} s"
        except ConnectionRefusedError as error:
            raise ConnectRefused(f"cannot connect: {error}") from error
        except OSError as error:
            failure = f"cannot connect: {error}"
        else:
            return connection
        raise ConnectFailed(failure)
