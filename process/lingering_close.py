"""Answers that end their connection while the client still sends, and that reach it all the same.

Bytes that come to a closed socket are answered with a reset, and a client that is reset loses what
it has not read yet, which is the error that says why. So the sending side alone is closed, and what
still comes is thrown away for a while: nginx's "lingering close".
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from pagelet.process.bounded_head import BoundedHeadProtocol

MOST_SECONDS: Final = 30.0
"""As long as nginx lingers: enough for 17 MB at 5 Mbit/s."""
MOST_BYTES: Final = 1 << 28
"""Thrown away at most: 0.1 s of a core."""


class LingeringProtocol(BoundedHeadProtocol):
    """Lingers after answers that end a connection before all of their request has come, and after
    the 400 for what is no HTTP."""

    _bytes_left: int | None = None
    """To be thrown away; None as long as the connection is open."""

    def data_received(self, data: bytes) -> None:
        """Of asyncio's protocol."""
        if self._bytes_left is None:
            super().data_received(data)
            return
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Of uvicorn's."""
        running = self._running
        if self._bytes_left is not None:
            return
        if running is not None and not running.response_complete:
            # Its answer may have begun, and would go on behind this one.
            super().send_400_response(msg)
            return
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(msg), msg.encode("ascii"))
        )
        self._linger()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Of uvicorn's."""
        cycle.transport = _EndedBy(cycle.transport, lambda: self._end(cycle))  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def _end(self, cycle: RequestResponseCycle) -> None:
        if cycle.response_complete and cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        if self.transport.is_closing():
            return
        self._bytes_left = MOST_BYTES
        self._unwatch()
        self._stall = self.loop.call_later(MOST_SECONDS, self.transport.close)
        self.flow.resume_reading()
        self.transport.write_eof()


class _EndedBy:
    """Stands for the transport of a request, but for how it is closed."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
