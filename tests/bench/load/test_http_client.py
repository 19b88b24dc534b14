"""The client against servers that do as they should and servers that do not."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.bench.load.http_client import HttpClient, RequestFailed
from support.answering import LAST_CHUNK, STREAM_HEAD, Request, answering, chunk

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


async def fetch(parts: list[bytes | float], most_seconds: float = 20.0) -> bytes:
    received: list[bytes] = []
    async with answering(lambda request: parts) as server:
        client = HttpClient(server.url, timeout=most_seconds)
        try:
            await client.post("/x", b"{}", lambda data, now: received.append(data))
        finally:
            await client.close()
    return b"".join(received)


@given(
    payload=st.binary(max_size=300),
    chunk_size=st.integers(1, 50),
    read_size=st.integers(1, 50),
)
def test_any_chunks_and_reads_give_the_same_body(
    payload: bytes, chunk_size: int, read_size: int
) -> None:
    chunks = [payload[i : i + chunk_size] for i in range(0, len(payload), chunk_size)]
    stream = STREAM_HEAD + b"".join(map(chunk, chunks)) + LAST_CHUNK
    reads: list[bytes | float] = [
        stream[i : i + read_size] for i in range(0, len(stream), read_size)
    ]
    assert asyncio.run(fetch(reads)) == payload


async def test_bodies_with_a_length_and_until_the_connection_closes() -> None:
    assert await fetch([OK[:-1], OK[-1:]]) == b"{}"
    assert await fetch([b"HTTP/1.1 200 OK\r\n\r\n{", b"}", b""]) == b"{}"


@pytest.mark.parametrize(
    ("parts", "kind", "detail"),
    [
        (
            [b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbusy"],
            "HTTP 429 Too Many Requests",
            "busy",
        ),
        (
            [b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 9\r\n\r\nbro", b""],
            "HTTP 500 Internal Server Error",
            "bro",
        ),
        ([STREAM_HEAD, chunk(b"data: "), b""], "connection cut", "middle"),
        ([STREAM_HEAD, b"5\r\nab", b""], "connection cut", "middle"),
        ([b""], "connection closed before an answer", "closed"),
        ([STREAM_HEAD, b"zz\r\n"], "malformed HTTP", "chunk size"),
        ([b"SSH-2.0-OpenSSH\r\n"], "malformed HTTP", "Expected HTTP/"),
    ],
)
async def test_a_failure_has_a_kind_and_says_more(
    parts: list[bytes | float], kind: str, detail: str
) -> None:
    with pytest.raises(RequestFailed, match=detail) as failure:
        await fetch(parts)
    assert failure.value.kind == kind


async def test_an_answer_that_does_not_end_in_time_fails() -> None:
    with pytest.raises(RequestFailed, match=r"timeout: no end within 0\.2 s"):
        await fetch([STREAM_HEAD, 30.0], most_seconds=0.2)


async def test_a_refused_connection_fails() -> None:
    async with answering(lambda request: [OK]) as server:
        pass
    with pytest.raises(RequestFailed, match="cannot connect"):
        await HttpClient(server.url).get("/")


async def test_what_the_sink_raises_ends_the_request_and_its_connection() -> None:
    def refuse(data: bytes, now: float) -> None:
        raise RequestFailed("not this")

    async with answering(lambda request: [STREAM_HEAD, chunk(b"a"), chunk(b"b")]) as server:
        client = HttpClient(server.url)
        for _ in range(2):
            with pytest.raises(RequestFailed, match="not this"):
                await client.post("/x", b"{}", refuse)
        await client.close()
    assert [request.connection for request in server.requests] == [0, 1]


async def test_a_connection_is_used_again_unless_the_server_says_otherwise() -> None:
    def answer(request: Request) -> Iterable[bytes]:
        if request.path == "/last":
            return [OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), b""]
        return [OK]

    async with answering(answer) as server:
        client = HttpClient(server.url)
        for path in ("/a", "/b", "/last", "/c"):
            assert await client.get(path) == b"{}"
        await client.close()
    assert [request.connection for request in server.requests] == [0, 0, 0, 1]


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    def answer(request: Request) -> Iterable[bytes]:
        # The first connection is cut without an answer when it is used for a second request.
        return [b""] if len(server.requests) == 2 else [OK]

    async with answering(answer) as server:
        client = HttpClient(server.url)
        assert await client.get("/a") == b"{}"
        assert await client.get("/b") == b"{}"
        await client.close()
    assert [request.path for request in server.requests] == ["/a", "/b", "/b"]


async def test_a_base_path_and_headers_go_with_every_request() -> None:
    async with answering(lambda request: [OK]) as server:
        client = HttpClient(f"{server.url}/engine/v1/", {"Authorization": "Bearer key"})
        await client.get("/v1/models")
        await client.close()
    assert server.requests[0].path == "/engine/v1/models"
    assert b"Authorization: Bearer key\r\n" in server.requests[0].head


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host/?a=b"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no http"):
        HttpClient(url)


def test_a_header_cannot_hold_another() -> None:
    with pytest.raises(ValueError, match="end of a line"):
        HttpClient("http://host", {"Authorization": "Bearer a\r\nX: y"})
