"""Clients that are answered while they still send: what is too long, or what nobody reads."""

import asyncio
import contextlib
import socket
import threading

import pytest
import uvloop

from pagelet.process import lingering_close
from pagelet.process.half_closed import HalfClosedProtocol
from pagelet.process.http_server import HTTPServer
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.openai.http_body import check_announced_length, too_large
from support.large_bodies import PIECE, by_curl, by_http_client, by_httpx
from support.processes import wait_for

LIMIT = 1 << 20
REFUSED = b"it is too large"


async def app(scope, receive, send):
    """Refuses what is announced too large at once, and other bodies once they are; reads none at
    /unread."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    size, more = 0, scope["path"] != "/unread"
    try:
        length = dict(scope["headers"]).get(b"content-length")
        if more:
            check_announced_length(length and length.decode(), LIMIT)
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
            if size > LIMIT:
                raise too_large(LIMIT)
        status, headers = 200, []
    except ApiError as error:
        status = error.status
        headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
    headers.append((b"content-length", b"%d" % len(REFUSED)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSED})


@contextlib.contextmanager
def serving():
    """The port of a server in a thread of its own, as clients are that write while it answers, and
    a function that tells how many connections it has."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = HTTPServer(app)

    def run():
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1], lambda: len(server.server_state.connections)
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize("ask", [by_http_client, by_httpx, by_curl])
def test_clients_read_why_their_body_was_refused(ask, chunked) -> None:
    with serving() as (port, _):
        for size in (17 << 20, 100 << 20):
            assert ask(f"http://127.0.0.1:{port}/", size, chunked) == (413, REFUSED)


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize("ask", [by_http_client, by_httpx, by_curl])
def test_clients_read_the_answer_to_a_body_that_nobody_reads(ask, chunked) -> None:
    with serving() as (port, _):
        assert ask(f"http://127.0.0.1:{port}/unread", 17 << 20, chunked) == (200, REFUSED)


def test_a_head_that_is_too_long_is_refused_in_words() -> None:
    with serving() as (port, _), connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\n" + b"X-Long: %b\r\n" % bytes(1 << 13) * 4096)
        assert read_all(client).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def read_all(client):
    parts = iter(lambda: client.recv(1 << 16), b"")
    return b"".join(parts)


def connect(port):
    return socket.create_connection(("127.0.0.1", port), 30)


def refuse(port):
    """A connection that has got its refusal, and the end of the server's sending side."""
    client = connect(port)
    client.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999999\r\n\r\n")
    assert read_all(client).endswith(REFUSED)
    return client


def test_a_client_that_never_stops_is_cut_off(monkeypatch) -> None:
    monkeypatch.setattr(lingering_close, "MOST_BYTES", 1 << 20)
    with serving() as (port, connections), refuse(port) as client:
        client.sendall(PIECE)
        assert connections() == 1
        with pytest.raises(ConnectionError):
            client.sendall(PIECE * 500)


def test_a_client_that_never_closes_is_closed(monkeypatch) -> None:
    monkeypatch.setattr(lingering_close, "MOST_SECONDS", 0.2)
    with serving() as (port, connections), refuse(port):
        wait_for(lambda: connections() == 0)


def test_a_client_that_closes_leaves_nothing() -> None:
    with serving() as (port, connections):
        refuse(port).close()
        wait_for(lambda: connections() == 0)


def test_a_server_that_stops_waits_for_no_refused_client() -> None:
    with serving() as (port, _):
        client = refuse(port)
    with client, pytest.raises(ConnectionError):
        client.sendall(PIECE * 500)


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


UNREAD = b"POST /unread HTTP/1.1\r\nHost: h\r\n"
CHUNKED = UNREAD + b"Transfer-Encoding: chunked\r\n\r\n"
LONG = [
    pytest.param(UNREAD + b"Content-Length: 9999999999\r\n\r\n", PIECE, id="announced"),
    pytest.param(CHUNKED, chunk(PIECE), id="chunked"),
    pytest.param(CHUNKED, chunk(b" ") * 20_000, id="tiny-chunks"),
]


def read_one(client):
    data = b""
    while not data.endswith(REFUSED):
        data += client.recv(1 << 16) or pytest.fail(f"no whole answer: {data!r}")
    return data


@pytest.mark.parametrize(("head", "piece"), LONG)
def test_a_long_body_that_nobody_reads_ends_its_connection(monkeypatch, head, piece) -> None:
    monkeypatch.setattr(lingering_close, "MOST_BYTES", 1 << 20)
    with serving() as (port, connections), connect(port) as client:
        client.sendall(head)
        told = b"connection: close" in read_one(client)
        assert told == (b"Content-Length" in head)
        client.sendall(piece * 2)
        assert client.recv(1) == b""
        assert connections() == 1
        with pytest.raises(ConnectionError):
            client.sendall(piece * 500)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        pytest.param(UNREAD + b"Content-Length: 60000\r\n\r\n", bytes(60_000), id="announced"),
        pytest.param(CHUNKED, chunk(bytes(60_000)) + b"0\r\n\r\n", id="chunked"),
    ],
)
def test_a_short_body_that_nobody_reads_keeps_its_connection(monkeypatch, head, body) -> None:
    with serving() as (port, connections), connect(port) as client:
        for parts in ((head, body), (head, body[:1], body[1:]), (head, body + head, body)):
            for part in parts:
                client.sendall(part)
                if part.endswith(head):
                    assert b"connection: close" not in read_one(client)
        # Requests that come together with such a body are answered, in turn.
        client.sendall((head + body) * 4 + b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        answers = b""
        while answers.count(REFUSED) < 5:
            answers += client.recv(1 << 16) or pytest.fail(f"{answers!r}")
        client.sendall(head)
        read_one(client)
        monkeypatch.setattr(HalfClosedProtocol, "stall_seconds", 0.1)
        client.sendall(body)
        wait_for(lambda: connections() == 0)  # as any that is idle


def test_the_rest_of_a_body_that_nobody_reads_has_to_come_in_time(monkeypatch) -> None:
    monkeypatch.setattr(lingering_close, "MOST_SECONDS", 0.2)
    with serving() as (port, connections), connect(port) as client:
        client.sendall(UNREAD + b"Content-Length: 2\r\n\r\n")
        read_one(client)
        wait_for(lambda: connections() == 0)
