"""Clients that send too much of a head, or too little of anything."""

import asyncio
import contextlib
import socket

import pytest

from pagelet.process import bounded_head
from pagelet.process.bounded_head import BoundedHeadProtocol
from pagelet.process.http_server import HTTPServer

ASK = b"POST / HTTP/1.1\r\nHost: h\r\n"


@contextlib.asynccontextmanager
async def listening(answer, protocol):
    """The port of a server that calls `answer(receive, send)` for each request."""

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await answer(receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HTTPServer(app, protocol)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.listening.wait()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


@contextlib.asynccontextmanager
async def serving(stall_seconds=0.3):
    """The port of a server, and how the requests to it ended: by their answer or their client."""
    ends = []
    protocol = type("Hasty", (BoundedHeadProtocol,), {"stall_seconds": stall_seconds})

    async def answer(receive, send):
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                ends.append("gone")
                return
            more = message["more_body"]
        await asyncio.sleep(1.2 * stall_seconds)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        ends.append("answered")

    async with listening(answer, protocol) as port:
        yield port, ends


async def exchange(port, *parts, pause=0.0):
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause)
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param([b"X: %b\r\n\r\n" % (b"a" * bounded_head._MOST_BYTES)], id="in one read"),
        pytest.param([b"X%d: %b\r\n" % (i, b"a" * 9000) for i in range(9)], id="endless"),
        pytest.param([b"".join(b"X%d:\r\n" % i for i in range(20_000)) + b"\r\n"], id="many"),
    ],
)
async def test_a_head_that_is_too_long_gets_400(head) -> None:
    async with serving() as (port, ends):
        data = await exchange(port, ASK, *head, pause=0.01)
        assert data == b"" or data.startswith(b"HTTP/1.1 400 ")
        assert not ends


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        pytest.param(b"1\r\na\r\n0\r\n", b"X: %b\r\n" % (b"a" * 9000), id="trailers"),
        pytest.param(b"1\r\na\r\n0\r\nX: ", b"a" * 9000, id="a trailer"),
        pytest.param(b"1\r\na\r\n1;x=", b"a" * 9000, id="a chunk extension"),
    ],
)
async def test_what_frames_a_body_has_an_end(before, piece) -> None:
    async with serving(stall_seconds=60.0) as (port, ends):
        head = ASK + b"Transfer-Encoding: chunked\r\n\r\n"
        data = await exchange(port, head, before, *[piece] * 8, pause=0.01)
        assert data.startswith(b"HTTP/1.1 400 ")
    assert ends == ["gone"]


async def test_short_trailers_and_chunk_extensions_are_no_error() -> None:
    chunk = b"1;x=%b\r\na\r\n" % (b"x" * 9000)
    end = b"0\r\nX: %b\r\n\r\n" % (b"a" * 9000)
    head = ASK + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving() as (port, ends):
        data = await exchange(port, head, *[chunk] * 9, end)
        assert data.startswith(b"HTTP/1.1 200 OK")
        assert ends == ["answered"]


@pytest.mark.parametrize(
    ("sent", "ended"),
    [
        pytest.param(b"", [], id="nothing"),
        pytest.param(ASK, [], id="half a head"),
        pytest.param(ASK + b"Content-Length: 9\r\n\r\nabc", ["gone"], id="half a body"),
    ],
)
async def test_who_sends_no_more_is_let_go(sent, ended) -> None:
    async with serving() as (port, ends):
        assert await exchange(port, sent) == b""
        assert ends == ended


async def test_who_is_slow_or_waits_is_not() -> None:
    whole = ASK + b"Content-Length: 5\r\nConnection: close\r\n\r\nabcde"
    parts = [whole[i : i + 15] for i in range(0, len(whole), 15)]
    async with serving(stall_seconds=2.0) as (port, ends):
        data = await exchange(port, *parts, pause=2.5 / len(parts))
        assert data.startswith(b"HTTP/1.1 200 OK")
        assert ends == ["answered"]


class Recorder:
    """A transport that remembers what was written at once."""

    def __init__(self, transport):
        self._transport = transport
        self.writes = []

    def write(self, data):
        self.writes.append(bytes(data))
        self._transport.write(data)

    def __getattr__(self, name):
        return getattr(self._transport, name)


@contextlib.asynccontextmanager
async def answering(app):
    """The port of a server that calls `app(send)` for each request, and what it writes at once."""
    recorders = []

    class Recording(BoundedHeadProtocol):
        def connection_made(self, transport):
            recorders.append(Recorder(transport))
            super().connection_made(recorders[-1])

    async def answer(receive, send):
        await receive()
        await app(send)

    async with listening(answer, Recording) as port:
        yield port, recorders


START = {"type": "http.response.start", "status": 200, "headers": []}


def part(body, more_body):
    return {"type": "http.response.body", "body": body, "more_body": more_body}


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_a_head_is_written_with_what_follows_at_once(method) -> None:
    async def app(send):
        await send(START)
        await send(part(b"one", True))
        await send(part(b"two", False))

    ask = method + b" / HTTP/1.1\r\nHost: h\r\n"
    async with answering(app) as (port, recorders):
        data = await exchange(port, ask + b"\r\n" + ask + b"Connection: close\r\n\r\n")
        (recorder,) = recorders
    assert b"".join(recorder.writes) == data
    assert [write[:15] for write in recorder.writes if b"HTTP/" in write] == [
        b"HTTP/1.1 200 OK"
    ] * 2
    if method == b"GET":
        assert len(recorder.writes) == 4
        assert recorder.writes[0].endswith(b"\r\n\r\n3\r\none\r\n")
        assert recorder.writes[1] == b"3\r\ntwo\r\n0\r\n\r\n"


async def test_a_head_that_nothing_follows_yet_waits_for_nobody() -> None:
    sees = asyncio.Event()

    async def app(send):
        await send(START)
        await sees.wait()
        await send(part(b"one", False))

    async with answering(app) as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        sees.set()
        assert await asyncio.wait_for(reader.read(), 60) == b"3\r\none\r\n0\r\n\r\n"
        writer.close()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_connection_is_closed_behind_a_head_without_a_body() -> None:
    async def app(send):
        await send(START | {"status": 204})
        await send(part(b"", False))

    async with answering(app) as (port, _):
        data = await exchange(port, b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert data.startswith(b"HTTP/1.1 204 ")
