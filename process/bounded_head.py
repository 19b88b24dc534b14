"""HTTP's protocol with a bound on what a client may send before its request has even begun."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pagelet.process.http1_parser import Http1Parser

_MOST_BYTES: Final = 64 << 10
"""Of a request's line and headers, as in nginx and Envoy within a factor of two."""


class BoundedHeadProtocol(HttpToolsProtocol):
    """Neither uvicorn nor httptools bounds headers: a client without any key could fill the
    memory with one request. What is longer than 64 KiB, and what came in the same read, gets a
    400 and the connection is closed. And of requests that are sent together uvicorn tells only the
    last one that its client went away: here the one that runs is told."""

    _running: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the last one that came, perhaps behind it."""
    _in_head = True
    _began = False
    _head_bytes = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser: Http1Parser = Http1Parser(self)  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Of asyncio's protocol."""
        was_in_head, self._began = self._in_head, False
        super().data_received(data)
        if not (was_in_head and self._in_head) or self.transport.is_closing():
            return
        # Where a request began in these bytes, part of them is the request before it.
        self._head_bytes = 0 if self._began else self._head_bytes + len(data)
        if self._head_bytes > _MOST_BYTES:
            self.send_400_response("Request line and headers are too long.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio's protocol."""
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def on_message_begin(self) -> None:
        """Of httptools' parser."""
        super().on_message_begin()
        self._in_head, self._began, self._head_bytes = True, True, 0

    def on_headers_complete(self) -> None:
        """Of httptools' parser."""
        self._in_head = False
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Of uvicorn's."""
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """Of httptools' parser."""
        if not self.parser.is_cut:
            super().on_message_complete()
