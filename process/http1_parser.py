"""HTTP/1.1's requests, also of clients that offer to speak another protocol.

Java's HTTP client and `curl --http2` offer HTTP/2 with every request in the clear. A server may
ignore that (RFC 9110, section 7.8), but httptools takes all that follows such a head for the other
protocol, and the request's body with it.
"""

from typing import Final, Protocol

import httptools

_FRAMING: Final = (b"content-length", b"transfer-encoding")


class Receiver(Protocol):
    """What httptools calls, and the headers of the request that is being read, names in lower
    case."""

    headers: list[tuple[bytes, bytes]]

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


class Http1Parser:
    """In place of `httptools.HttpRequestParser`. Where a client offers another protocol, httptools
    ends the message with its head: then `is_cut` is true in `on_message_complete`, which is called
    again when the message really ends."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._parser = _new_parser(receiver)

    def feed_data(self, data: bytes) -> None:
        """Raises as httptools does, but no `HttpParserUpgrade`."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._begin_again()
            else:
                return

    @property
    def is_cut(self) -> bool:
        """Whether the message goes on although its end was told."""
        return self._parser.should_upgrade()

    def should_upgrade(self) -> bool:
        """Never."""
        return False

    def get_http_version(self) -> str:
        """As httptools'."""
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        """As httptools'."""
        return self._parser.get_method()

    def should_keep_alive(self) -> bool:
        """As httptools'."""
        return self._parser.should_keep_alive()

    def _begin_again(self) -> None:
        """Reads on behind the head, which another parser gets again without the offer."""
        beheaded = _Beheaded(self._receiver)
        self._parser = _new_parser(beheaded)
        head = [b"POST / HTTP/1.1"]
        head += (b"%b: %b" % pair for pair in self._receiver.headers if pair[0] in _FRAMING)
        self._parser.feed_data(b"\r\n".join((*head, b"", b"")))
        beheaded.in_head = False


class _Beheaded:
    """Passes on everything but the first head."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.headers = receiver.headers
        self.in_head = True
        self.on_body = receiver.on_body
        self.on_message_complete = receiver.on_message_complete

    def on_message_begin(self) -> None:
        if not self.in_head:
            self._receiver.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.in_head:
            self._receiver.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            self._receiver.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.in_head:
            self._receiver.on_headers_complete()


def _new_parser(receiver: object) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(receiver)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    return parser
