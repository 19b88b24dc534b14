"""Requests whose clients offer another protocol are requests like others, however they are cut into
segments, and the next one on their connection is, too."""

import asyncio
import json
import queue
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagelet.process.http_server import HTTPServer

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


async def echo(scope, receive, send):
    """Answers with the method, the path, and the body that came."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request", "the client is thought to be gone"
        body += message["body"]
        more = message["more_body"]
    answer = json.dumps([scope["method"], scope["path"], body.decode()]).encode()
    headers = [(b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture(scope="module")
def port():
    """Of the server, in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    servers = queue.SimpleQueue()

    async def serve():
        server = HTTPServer(echo)
        servers.put(server)
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    server = servers.get()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


def request(number, method, body, *, offers, chunked):
    lines = [b"%b /%d HTTP/1.1\r\nHost: h\r\n" % (method, number)]
    if offers:
        lines.append(OFFER)
    if not chunked:
        length = b"Content-Length: %d\r\n\r\n" if body else b"\r\n"
        return b"".join((*lines, length % len(body) if body else length, body))
    chunks = [b"%x\r\n%b\r\n" % (1, bytes([byte])) for byte in body]
    return b"".join((*lines, b"Transfer-Encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"))


requests = st.lists(
    st.tuples(
        st.sampled_from([b"POST", b"GET"]), st.text("ab{}", max_size=20), *[st.booleans()] * 2
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)
@given(asked=requests, data=st.data())
def test_an_offer_changes_nothing(port, asked, data) -> None:
    sent = b"".join(
        request(number, method, body.encode(), offers=offers, chunked=chunked)
        for number, (method, body, offers, chunked) in enumerate(asked)
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=6)))

    async def talk():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            writer.write(sent[start:end])
            await writer.drain()
            await asyncio.sleep(0.001)
        answers = []
        async with asyncio.timeout(60):
            for _ in asked:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK"), head
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                answers.append(json.loads(await reader.readexactly(length)))
        writer.close()
        return answers

    assert asyncio.run(talk()) == [
        [method.decode(), f"/{number}", body] for number, (method, body, _, _) in enumerate(asked)
    ]
