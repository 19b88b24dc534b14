"""The client against servers that do as they should and servers that do not."""

import asyncio
import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.router.upstream.client import (
    AnswerTooLarge,
    ConnectFailed,
    ConnectRefused,
    Response,
    Upstream,
    UpstreamTimeout,
)
from pagelet.router.upstream.connection import ConnectionLost, MalformedAnswer, UpstreamError
from support.answering import LAST_CHUNK, STREAM_HEAD, answering, chunk
from support.virtual_time import VirtualTimeLoop

PATIENCE = 60.0
"""Seconds for what must come, however busy the machine is."""
OK = b"HTTP/1.1 200 OK\r\nX-Own: yes\r\ncontent-length: 2\r\n\r\n{}"


@contextlib.asynccontextmanager
async def asking(answer):
    async with answering(answer) as server:
        upstream = Upstream(server.url, PATIENCE)
        try:
            yield server, upstream
        finally:
            upstream.close()


async def ask(upstream, path="/x", seconds=PATIENCE, **options):
    response = await upstream.send("POST", path, [], b"{}", seconds=seconds, **options)
    try:
        return response.status, await response.read_all(seconds)
    finally:
        response.close()


async def test_an_answer_without_end_is_given_up() -> None:
    endless = [STREAM_HEAD, *[chunk(b"a" * 1000)] * 1000]
    async with asking(lambda request: endless) as (_, upstream):
        response = await upstream.send("POST", "/", [], b"{}", seconds=PATIENCE)
        try:
            with pytest.raises(AnswerTooLarge, match="5000 bytes"):
                await response.read_all(PATIENCE, 5000)
        finally:
            response.close()


@given(
    payload=st.binary(max_size=300),
    chunk_size=st.integers(1, 50),
    read_size=st.integers(1, 50),
)
def test_any_chunks_and_reads_give_the_same_body(payload, chunk_size, read_size) -> None:
    chunks = [payload[i : i + chunk_size] for i in range(0, len(payload), chunk_size)]
    stream = STREAM_HEAD + b"".join(map(chunk, chunks)) + LAST_CHUNK
    reads = [stream[i : i + read_size] for i in range(0, len(stream), read_size)]

    async def fetch():
        async with asking(lambda request: reads) as (_, upstream):
            return await ask(upstream)

    assert asyncio.run(fetch()) == (200, payload)


async def test_the_request_is_whole_and_headers_come_in_lower_case() -> None:
    async with asking(lambda request: [OK]) as (server, upstream):
        headers = [(b"a", b"1"), (b"a", b"2")]
        response = await upstream.send("POST", "/p?q=1", headers, b"{1}", seconds=PATIENCE)
        assert response.header(b"x-own") == b"yes"
        assert await response.read_all(PATIENCE) == b"{}"
        response.close()
    (request,) = server.requests
    assert (request.path, request.body) == ("/p?q=1", b"{1}")
    assert b"a: 1\r\na: 2\r\n" in request.head
    assert request.head.count(b"Host: ") == 1


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        pytest.param([b""], ConnectionLost, id="closed before an answer"),
        pytest.param([OK[:-1], b""], ConnectionLost, id="closed in a body"),
        pytest.param([STREAM_HEAD, b"5\r\nab", b""], ConnectionLost, id="closed in a chunk"),
        pytest.param([STREAM_HEAD, b"zz\r\n"], MalformedAnswer, id="no chunk"),
        pytest.param([b"SSH-2.0-OpenSSH\r\n"], MalformedAnswer, id="no HTTP"),
        pytest.param([b"HTTP/1.1 600 x\r\n\r\n"], MalformedAnswer, id="no status"),
        pytest.param(
            [OK[:17], *[b"X-A: %b\r\n" % (b"a" * 1000)] * 300], MalformedAnswer, id="all head"
        ),
        pytest.param(
            [b"HTTP/1.1 101 x\r\nUpgrade: y\r\n\r\n"], MalformedAnswer, id="no HTTP any more"
        ),
        pytest.param([PATIENCE], UpstreamTimeout, id="silent"),
        pytest.param([STREAM_HEAD, chunk(b"a"), PATIENCE], UpstreamTimeout, id="silent in a body"),
    ],
)
async def test_a_broken_answer_is_an_error_and_its_connection_is_not_used_again(
    parts, error
) -> None:
    def answer(request):
        return parts if len(server.requests) == 1 else [OK]

    async with asking(answer) as (server, upstream):
        with pytest.raises(error):
            await ask(upstream, seconds=0.3 if error is UpstreamTimeout else PATIENCE)
        assert await ask(upstream) == (200, b"{}")
    assert [request.connection for request in server.requests] == [0, 1]


async def test_nobody_listens() -> None:
    async with answering(lambda request: [OK]) as server:
        pass
    with pytest.raises(ConnectRefused, match="cannot connect"):
        await ask(Upstream(server.url, PATIENCE))


async def test_a_host_that_is_silent_has_not_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()),
        pytest.raises(ConnectFailed, match="cannot connect within") as caught,
    ):
        await ask(Upstream(f"http://127.0.0.1:{full.getsockname()[1]}", 0.2))
    assert not isinstance(caught.value, ConnectRefused)


async def test_connections_are_used_again_unless_the_server_says_otherwise() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")

    def answer(request):
        return {"/last": [closing, b""], "/stream": [STREAM_HEAD, chunk(b"{}"), LAST_CHUNK]}.get(
            request.path, [OK]
        )

    async with asking(answer) as (server, upstream):
        for path in ("/a", "/stream", "/b", "/last", "/c"):
            assert await ask(upstream, path) == (200, b"{}")
    assert [request.connection for request in server.requests] == [0, 0, 0, 0, 1]


async def test_an_answer_that_is_let_go_early_is_cut_off() -> None:
    def answer(request):
        return [STREAM_HEAD, chunk(b"a"), PATIENCE] if len(server.requests) == 1 else [OK]

    async with asking(answer) as (server, upstream):
        response = await upstream.send("POST", "/x", [], b"{}", seconds=PATIENCE)
        assert await response.read(PATIENCE) == b"a"
        response.close()
        response.close()
        assert await ask(upstream) == (200, b"{}")
    assert [request.connection for request in server.requests] == [0, 1]


async def test_once_closed_it_keeps_no_connection() -> None:
    """Of a replica that is gone while something is asked of it."""
    asked, lost = 0, asyncio.Event()

    async def serve(reader, writer):
        nonlocal asked
        await reader.readuntil(b"{}")
        asked += 1
        writer.write(OK)
        assert await reader.read() == b""
        writer.close()
        lost.set()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        upstream = Upstream(f"http://127.0.0.1:{port}", PATIENCE)
        response = await upstream.send("POST", "/x", [], b"{}", seconds=PATIENCE)
        upstream.close()
        assert await response.read_all(PATIENCE) == b"{}"
        response.close()
        await asyncio.wait_for(lost.wait(), PATIENCE)
    assert asked == 1


async def test_what_came_before_an_interruption_can_still_be_read() -> None:
    async with asking(lambda request: [STREAM_HEAD, chunk(b"a"), PATIENCE]) as (_, upstream):
        response = await upstream.send("POST", "/x", [], b"{}", seconds=PATIENCE)
        loop = asyncio.get_running_loop()
        while not response._chunks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        upstream.interrupt_silent(UpstreamError("not yet"), since=loop.time() - 10)
        response.can_move = False
        upstream.move(UpstreamError("not this"))
        response.can_move = True
        upstream.move(UpstreamError("leaves"))
        assert await response.read(PATIENCE) == b"a"
        with pytest.raises(UpstreamError, match="leaves"):
            await response.read(PATIENCE)
        response.close()


async def test_an_interim_answer_is_not_the_answer() -> None:
    interim = b"HTTP/1.1 100 Continue\r\nX-Own: no\r\n\r\n"
    async with asking(lambda request: [interim, 0.05, OK]) as (_, upstream):
        assert await ask(upstream) == (200, b"{}")


async def test_a_second_answer_ends_the_connection() -> None:
    def answer(request):
        return [OK + OK] if len(server.requests) == 1 else [OK]

    async with asking(answer) as (server, upstream):
        for _ in range(2):
            assert await ask(upstream) == (200, b"{}")
    assert [request.connection for request in server.requests] == [0, 1]


async def test_a_base_path_goes_before_every_other() -> None:
    async with answering(lambda request: [OK]) as server:
        upstream = Upstream(f"{server.url}/engine/v1/", PATIENCE)
        await ask(upstream, "/v1/models")
        upstream.close()
    assert server.requests[0].path == "/engine/v1/models"


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "http://host/?a=b", "http://h:x", "http://a:b@h"]
)
def test_what_is_no_url_of_a_server_is_refused(url) -> None:
    with pytest.raises(ValueError, match=r"URL|Port"):
        Upstream(url, 1.0)


class NoConnection:
    """For an answer that a test brings itself."""

    def abort(self) -> None: ...


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8))
def test_silence_is_counted_from_what_came_last(reads) -> None:
    """Of each read: after how long something comes, and how long is waited for it."""

    async def read_all():
        loop = asyncio.get_running_loop()
        response = Response(Upstream("http://h", 1.0), NoConnection())
        try:
            for comes, waits in reads:
                began = loop.time()
                handle = loop.call_later(comes - 0.5, response.on_body, b"x")
                try:
                    assert await response.read(waits) == b"x"
                except UpstreamTimeout:
                    handle.cancel()
                    assert loop.time() == began + waits
                    assert waits < comes
                else:
                    assert loop.time() == began + comes - 0.5
                    assert waits >= comes
                assert not response.at_end
            response.on_end(None)
            assert response.at_end
            assert await response.read(1) == b""
        finally:
            response.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(read_all())
