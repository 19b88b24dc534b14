"""Answers that come while the client still sends, and that reach it all the same.

Bytes that come to a closed socket are answered with a reset, and a client that is reset loses what
it has not read yet, which is the error that says why. So the sending side alone is closed, and what
still comes is thrown away for a while: nginx's "lingering close". So ends, too, the connection of a
request that was answered without its body, unless the rest of that body is short.
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
MOST_REST_BYTES: Final = 64 << 10
"""Of a body behind its answer that are read so as to keep the connection: they are on their way
already, as is what uvicorn holds of a body that nobody reads."""


class LingeringProtocol(BoundedHeadProtocol):
    """Lingers after answers that end a connection before all of their request has come, or that
    are complete long before it has, and after the 400 for what is no HTTP."""

    _bytes_left: int | None = None
    """To be thrown away; None as long as the connection is open."""
    _rest_left: int | None = None
    """Of a request that is answered, before the connection is to end; None if all of it came."""

    def data_received(self, data: bytes) -> None:
        """Of asyncio's protocol."""
        if self._bytes_left is not None:
            self._bytes_left -= len(data)
            if self._bytes_left < 0:
                self.transport.close()
            return
        super().data_received(data)
        if self._rest_left is not None and self._bytes_left is None:
            # Not the body's bytes alone: chunks of next to nothing have an end, too.
            self._rest_left -= len(data)
            if self._rest_left < 0:
                self._linger()

    def on_message_complete(self) -> None:
        """Of httptools' parser."""
        super().on_message_complete()
        if self._rest_left is not None and not self.parser.is_cut:
            self._rest_left = None
            self._watch(self.stall_seconds)  # the connection is idle

    def on_response_complete(self) -> None:
        """Of uvicorn's."""
        super().on_response_complete()
        still_comes = self.cycle.response_complete and self.cycle.more_body
        if still_comes and self._bytes_left is None and not self.transport.is_closing():
            self._rest_left = MOST_REST_BYTES
            self._unset_keepalive_if_required()
            self._close_in_time()

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
        if _announced_length(cycle) > MOST_REST_BYTES:
            app = _telling_of_end(cycle, app)
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
        self._close_in_time()
        self.flow.resume_reading()
        self.transport.write_eof()

    def _close_in_time(self) -> None:
        self._unwatch()
        self._stall = self.loop.call_later(MOST_SECONDS, self.transport.close)


def _announced_length(cycle: RequestResponseCycle) -> int:
    for name, value in cycle.scope["headers"]:
        if name == b"content-length":
            return int(value)  # the parser has taken it
    return 0


def _telling_of_end(cycle: RequestResponseCycle, app: Any) -> Any:
    """An app whose answer says that the connection ends with it, if it does not wait for a long
    body."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def telling_send(message: Any) -> None:
            if message["type"] == "http.response.start" and cycle.more_body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, telling_send)

    return answer


class _EndedBy:
    """Stands for the transport of a request, but for how it is closed."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
