"""One HTTP/1.1 connection to a server, with at most one request on it.

Bytes go from the socket to `httptools` (llhttp) and from there straight to a receiver: one core
must pass on the events of hundreds of streams.
"""

import asyncio
import contextlib
import socket
from typing import Protocol, cast

import httptools

Headers = list[tuple[bytes, bytes]]

_LAST_STATUS = 599
_MOST_HEAD_BYTES = 256 << 10
"""Of an answer's status line and headers."""


class UpstreamError(Exception):
    """A server did not answer as it should have."""


class ConnectionLost(UpstreamError):
    """The request was sent, but its answer did not come, or not all of it: the connection was cut,
    or what came is no HTTP. `begun` tells whether part of an answer had come."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class MalformedAnswer(ConnectionLost):
    """What came is no HTTP."""


class Receiver(Protocol):
    """Takes an answer as it comes, at most one call of each kind for what is read at once. What it
    raises ends the request and comes back in `on_end`."""

    def on_head(self, status: int, headers: Headers) -> None:
        """The status and the headers, their names in lower case."""
        ...

    def on_body(self, data: bytes) -> None:
        """The next bytes of the body, without any transfer encoding."""
        ...

    def on_end(self, error: Exception | None) -> None:
        """The answer is complete, or will never be. Called exactly once, unless `abort` was."""
        ...


class Connection(asyncio.Protocol):
    """See the module. Made by `loop.create_connection`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._open = True
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._body: list[bytes] = []
        self._status = self._head_bytes = 0
        """Of the answer; 0 until its head has come."""
        self._begun = self._head_is_new = self._framed = self._complete = False

    @property
    def usable(self) -> bool:
        """Whether a request may be sent on it."""
        return self._open and self._receiver is None

    def send(self, request: bytes, receiver: Receiver) -> None:
        """Sends a whole request, of any method but HEAD."""
        assert self._transport is not None
        assert self.usable
        self._receiver = receiver
        self._parser = httptools.HttpResponseParser(self)
        self._headers = []
        self._body.clear()
        self._status = self._head_bytes = 0
        self._begun = self._head_is_new = self._framed = self._complete = False
        self._transport.write(request)

    def abort(self) -> None:
        """Closes it at once; the receiver hears nothing more."""
        self._receiver = None
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Reads no more until `resume`, so that a sender faster than we are has to wait."""
        if self._transport is not None and self._open:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if self._transport is not None and self._open:
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:  # an answer that nobody asked for
            self.abort()
            return
        self._begun = True
        if not self._status:
            self._head_bytes += len(data)
        try:
            with contextlib.suppress(httptools.HttpParserCallbackError):  # a second answer
                self._parser.feed_data(data)
            if not self._status and self._head_bytes > _MOST_HEAD_BYTES:
                raise MalformedAnswer("the head of the answer does not end", begun=True)
            self._deliver(self._receiver)
        except httptools.HttpParserError as error:
            self._finish(MalformedAnswer(str(error), begun=True))
        except httptools.HttpParserUpgrade:  # to what nobody asked for
            self._finish(MalformedAnswer("the server switched protocols", begun=True))
        except Exception as error:  # whatever the receiver finds wrong ends the request
            self._finish(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open = False
        if self._status and not self._framed and exc is None:
            self._finish(None)  # a body without a length ends with the connection
        else:
            where = "in the middle of an answer" if self._begun else "before an answer"
            reason = f"the connection was closed {where}" + (f": {exc}" if exc else "")
            self._finish(ConnectionLost(reason, begun=self._begun))

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._complete:  # a second answer to one request: none of it can be trusted
            self._open = False
            raise ValueError("two answers")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._status, self._head_is_new = status, True
        if status in (204, 304):
            self._framed = True

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._status:
            self._complete = True
            self._open = self._open and self._parser.should_keep_alive()  # true only in here
        else:  # an interim answer, such as 100 Continue
            self._headers = []

    # From here on: what the parser found.

    def _deliver(self, receiver: Receiver) -> None:
        if self._head_is_new:
            self._head_is_new = False
            if self._status > _LAST_STATUS:
                raise MalformedAnswer(f"there is no HTTP status {self._status}", begun=True)
            receiver.on_head(self._status, self._headers)
        if self._body:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            receiver.on_body(body)
        if self._complete:
            self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        receiver, self._receiver = self._receiver, None
        if error is not None or not self._open:
            self._open = False
            if self._transport is not None:
                self._transport.abort()
        if receiver is not None:
            receiver.on_end(error)
