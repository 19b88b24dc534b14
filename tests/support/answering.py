"""A tiny HTTP server whose answers are bytes that a test chooses."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


@dataclasses.dataclass
class Request:
    """What came, and on which connection (numbered from 0)."""

    path: str
    head: bytes
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclasses.dataclass
class Answering:
    """The running server."""

    url: str
    requests: list[Request] = dataclasses.field(default_factory=list)
    in_flight: int = 0
    peak: int = 0


Answer = Callable[[Request], Iterable[bytes | float]]
"""Parts to send; a float is a pause in seconds, and an empty part cuts the connection."""


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    """One server-sent event."""
    text = value if isinstance(value, str) else json.dumps(value)
    return f"data: {text}\n\n".encode()


def completion(texts: list[str], usage: dict[str, Any] | None) -> list[bytes]:
    """A good streamed answer of `/v1/completions`."""
    events = [event({"choices": [{"text": text}], "usage": None}) for text in texts]
    if usage is not None:
        events.append(event({"choices": [], "usage": usage}))
    return [STREAM_HEAD, *map(chunk, [*events, event("[DONE]")]), LAST_CHUNK]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[Answering]:
    """Serves on a free port of the loopback; connections are kept until a part is empty."""
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        number, connections = connections, connections + 1
        try:
            while await answer_one(reader, writer, number):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            writer.close()

    async def answer_one(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        _, _, rest = head.lower().partition(b"content-length: ")
        body = await reader.readexactly(int(rest.split(b"\r\n")[0] or 0))
        request = Request(head.split()[1].decode(), head, body, number)
        server.requests.append(request)
        server.in_flight += 1
        server.peak = max(server.peak, server.in_flight)
        try:
            for part in answer(request):
                if isinstance(part, float):
                    await asyncio.sleep(part)
                    continue
                if not part:
                    return False
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            server.in_flight -= 1
        return True

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    server = Answering(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    async with listener:
        yield server
