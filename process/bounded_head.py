"""HTTP's protocol with bounds on what a client may send before its request has even begun, and on
how long it may take."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pagelet.process.http1_parser import Http1Parser

_MOST_BYTES: Final = 64 << 10
"""Of a request's line and headers, as in nginx and Envoy within a factor of two."""


class BoundedHeadProtocol(HttpToolsProtocol):
    """Neither uvicorn nor httptools bounds headers: a client without any key could fill the
    memory with one request, or with the trailers behind its body. What is longer than 64 KiB gets a
    400 and the connection is closed.
    It is closed, too, when for 75 s nothing comes of a request that has begun, or no first request
    comes. And of requests that are sent together uvicorn tells only the last one that its client
    went away: here the one that runs is told."""

    stall_seconds = 75.0
    """As long as an idle connection is kept between two requests."""
    _running: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the last one that came, perhaps behind it."""
    _in_head = True
    _began = False
    _head_bytes = 0
    _frame_bytes = 0
    """That came of a request, behind its head, since the last of its body."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser: Http1Parser = Http1Parser(self)  # type: ignore[assignment]
        self._stall: asyncio.TimerHandle | None = None
        self._received = 0.0
        """When something came last, on the event loop's clock."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Of asyncio's protocol."""
        super().connection_made(transport)
        self._received = self.loop.time()
        self._watch(self.stall_seconds)

    def data_received(self, data: bytes) -> None:
        """Of asyncio's protocol."""
        was_in_head, self._began = self._in_head, False
        self._received = self.loop.time()
        self._frame_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._in_head:
            self._check_frames()
            return
        if not was_in_head:
            return
        # Where a request began in these bytes, part of them is the request before it.
        self._head_bytes = 0 if self._began else self._head_bytes + len(data)
        if self._head_bytes > _MOST_BYTES:
            self.send_400_response("Request line and headers are too long.")

    def _check_frames(self) -> None:
        cycle = self.cycle
        coming = cycle is not None and cycle.more_body and not cycle.response_complete
        if coming and self._frame_bytes > _MOST_BYTES:
            self.send_400_response("Chunk extensions or trailers are too long.")

    def on_body(self, body: bytes) -> None:
        """Of httptools' parser."""
        self._frame_bytes = 0
        super().on_body(body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio's protocol."""
        super().connection_lost(exc)
        self._unwatch()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def on_message_begin(self) -> None:
        """Of httptools' parser."""
        super().on_message_begin()
        self._in_head, self._began, self._head_bytes = True, True, 0
        if self._stall is None:
            self._watch(self.stall_seconds)

    def on_headers_complete(self) -> None:
        """Of httptools' parser. What this raises is answered with a 400."""
        self._in_head, self._frame_bytes = False, 0
        if sum(len(name) + len(value) for name, value in self.headers) > _MOST_BYTES:
            raise ValueError("headers are too long")
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Of uvicorn's."""
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(cycle, app)
        if cycle.scope["method"] != "HEAD":
            cycle.transport = _HeldHead(cycle, self.loop)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """Of httptools' parser."""
        if not self.parser.is_cut:
            self._unwatch()
            super().on_message_complete()

    def _watch(self, seconds: float) -> None:
        self._stall = self.loop.call_later(seconds, self._end_if_stalled)

    def _unwatch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _end_if_stalled(self) -> None:
        left = self._received + self.stall_seconds - self.loop.time()
        if self.flow.read_paused:  # it is we who do not read
            self._watch(self.stall_seconds)
        elif left > 0:
            self._watch(left)
        else:
            self.transport.close()


class _HeldHead:
    """Stands for the transport until the head of an answer was written: it waits for what follows
    at once, so that both are one packet and one system call, not two."""

    def __init__(self, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> None:
        self._cycle = cycle
        self._loop = loop
        self._transport = cycle.transport
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """As a transport's."""
        if self._head is not None:
            self._release(data)
        elif self._cycle.response_started:
            self._head = data
            self._loop.call_soon(self._release)
        else:  # an interim answer
            self._transport.write(data)

    def close(self) -> None:
        """As a transport's."""
        self._release()
        self._transport.close()

    def is_closing(self) -> bool:
        """As a transport's."""
        return self._transport.is_closing()

    def _release(self, following: bytes = b"") -> None:
        if self._head is not None:
            self._transport.write(self._head + following)
            self._head = None
            self._cycle.transport = self._transport


def _without_chunks(cycle: RequestResponseCycle, app: Any) -> Any:
    """An app that answers a client of HTTP/1.0, which knows no chunks (RFC 9112, 6.1): a body of
    unknown length ends with its connection."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        ends_with_connection = False

        async def plain_send(message: Any) -> None:
            nonlocal ends_with_connection
            if message["type"] == "http.response.start":
                names = [name.lower() for name, _ in message.get("headers", ())]
                ends_with_connection = b"content-length" not in names
                if ends_with_connection:
                    cycle.chunked_encoding = False
            elif ends_with_connection:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, plain_send)

    return answer
