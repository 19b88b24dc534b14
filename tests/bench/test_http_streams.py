"""The streaming client against servers that do as they should and servers that do not."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pagelet.bench.http_streams import NAME, StreamResult, measure, stream_all, summarise
from pagelet.bench.sse import BadStream

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def event(value: object) -> bytes:
    data = value if isinstance(value, str) else json.dumps(value)
    payload = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(payload), payload)


@asynccontextmanager
async def serving(parts: list[bytes], bodies: list[bytes]) -> AsyncIterator[int]:
    """A server that answers every request with `parts`, and notes the requests' bodies."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        bodies.append(await reader.readexactly(length))
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_every_stream_is_counted_and_has_a_prompt_of_its_own() -> None:
    usage = {"choices": [], "usage": {"completion_tokens": 3}}
    texts = [event({"choices": [{"text": "a"}]}) for _ in range(3)]
    parts = [HEAD, *texts, event(usage), event("[DONE]"), b"0\r\n\r\n"]
    bodies: list[bytes] = []
    async with serving(parts, bodies) as port:
        results = await stream_all(port, num_streams=8, prompt_tokens=20, num_tokens=3)
    assert [result.num_tokens for result in results] == [3] * 8
    assert [result.num_events for result in results] == [5] * 8
    assert all(result.sent < result.first_event < result.end for result in results)
    requests = [json.loads(body) for body in bodies]
    assert len({tuple(request["prompt"][:16]) for request in requests}) == 8
    for request in requests:
        assert len(request["prompt"]) == 20
        assert (request["model"], request["max_tokens"]) == (NAME, 3)
        assert request["stream"] is request["ignore_eos"] is True


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([b"HTTP/1.1 503 Service Unavailable\r\n\r\ndead"], "503"),
        ([HEAD, event({"choices": []})], "closed the connection"),
        ([HEAD, event("[DONE]"), b"0\r\n\r\n"], "no usage"),
        (
            [HEAD, event({"usage": {"completion_tokens": 2}}), event("[DONE]"), b"0\r\n\r\n"],
            "2 tokens instead of 3",
        ),
    ],
)
async def test_a_stream_that_goes_wrong_fails_the_measurement(
    parts: list[bytes], reason: str
) -> None:
    async with serving(parts, []) as port:
        with pytest.raises(BadStream, match=reason):
            await stream_all(port, num_streams=1, prompt_tokens=4, num_tokens=3)


def test_the_figures_count_from_the_first_request_to_the_end_of_the_last_stream() -> None:
    results = [StreamResult(10.0, 10.5, 12.0, 4, 30), StreamResult(11.0, 11.1, 14.0, 8, 50)]
    tokens, events, median, worst = summarise("x", results)
    assert tokens.value == 80 / 4
    assert events.value == 12 / 4
    assert (median.value, worst.value) == pytest.approx((100.0, 500.0))


def test_a_real_server_streams_all_tokens() -> None:
    texts: list[str] = []
    figures = measure(texts.append, num_streams=4, prompt_tokens=20, num_tokens=24)
    assert [figure.unit for figure in figures] == 2 * ["tokens/s", "events/s", "ms", "ms"]
    assert all(figure.value > 0 for figure in figures)
    assert "warming up 4 streams" in texts
