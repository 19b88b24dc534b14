"""One client's request and the answer to it, over ASGI."""

from collections.abc import Iterable
from typing import Any

from pagelet.process.disconnect import ClientGone, Receive
from pagelet.protocol.anthropic.errors import error_body, error_event
from pagelet.protocol.openai.errors import RESPONSES, ApiError, response_error_event
from pagelet.protocol.openai.http_body import (
    check_announced_length,
    check_elements,
    check_media_type,
    too_large,
)
from pagelet.router.tenants.limits import Grant
from pagelet.router.upstream.connection import Headers


class Exchange:
    """`extra_headers` go with the answer, whatever it is."""

    def __init__(self, scope: dict[str, Any], receive: Receive, send: Any) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        query: bytes = scope["query_string"]
        raw_path: bytes = scope["raw_path"]
        self.target = (raw_path + b"?" + query if query else raw_path).decode("latin-1")
        """What to ask a replica for."""
        self.headers: Headers = scope["headers"]
        self.extra_headers: list[tuple[str, str]] = []
        self.grant: Grant | None = None
        """What the request took of its tenant's limits, which the answer tells of."""
        self.status = 0
        """Of the answer; 0 until it has begun."""
        self.failure: bytes | None = None
        """The event by which a replica told that its stream failed, in the words of its API."""
        self._num_events = 0
        """Server-sent events that were written: each ends with an empty line."""
        self.receive = receive
        self._send = send

    def header(self, name: bytes) -> str | None:
        """The first of a name, which is in lower case."""
        for known, value in self.headers:
            if known == name:
                return value.decode("latin-1")
        return None

    async def read_json(self, limit: int) -> bytes:
        """The body. Raises `ApiError` for what cannot be JSON or is too large, `ClientGone`."""
        check_media_type(self.header(b"content-type"), self.header(b"content-encoding"))
        check_announced_length(self.header(b"content-length"), limit)
        parts, size, more = [], 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
            more = message.get("more_body", False)
        data = b"".join(parts)
        check_elements(data)
        return data

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """The head of an answer whose body follows by `write` and `end`."""
        self.status = status
        limits = [] if self.grant is None else self.grant.headers()
        extra = [
            (name.lower().encode(), value.encode())
            for name, value in (*self.extra_headers, *limits)
        ]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *extra]}
        )

    async def write(self, data: bytes) -> None:
        """More of the body; waits while the client is slow."""
        self._num_events += data.count(b"\n\n")
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """The last of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(
        self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """A whole answer."""
        length = (b"content-length", b"%d" % len(body))
        await self.begin(status, [*headers, length])
        await self.end(body)

    async def answer_json(self, body: bytes) -> None:
        """A whole answer: 200, in JSON."""
        await self.answer(200, body, [(b"content-type", b"application/json")])

    async def answer_error(self, error: ApiError) -> None:
        """An error in the shape of the API that was asked: an answer of its own, or the last event
        of a stream."""
        if self.status:
            event = self.failure
            if event is None and self.path == RESPONSES:
                event = response_error_event(error, self._num_events)
            await self.end(error_event(self.path, error) if event is None else event)
            return
        body = error_body(self.path, error)
        self.extra_headers += (error.headers or {}).items()
        await self.answer(error.status, body, [(b"content-type", b"application/json")])
