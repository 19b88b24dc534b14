"""What a server says of itself over HTTP: whether it is ready, and its metrics."""

import asyncio
import collections
import time
from collections.abc import Mapping

import msgspec

_SECONDS = 2.0
_MOST_BYTES = 4 << 20


class Load(msgspec.Struct, kw_only=True, frozen=True):
    """A replica's work at one moment, and since the moment before."""

    in_flight: int = 0
    """HTTP requests being answered."""
    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0
    """0 to 1."""
    prefix_hit_rate: float | None = None
    """Share of prompt tokens that came from the cache, of all since the start; None before any."""
    tokens_per_second: float = 0.0
    """Generated, since the sample before."""


class Sampler:
    """Turns a replica's metrics into its load."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def take(self, text: str, now: float | None = None) -> Load:
        """`text` is Prometheus' format."""
        now = time.monotonic() if now is None else now
        sums, counts = _sums(text)
        queries = sums["vllm:prefix_cache_queries_total"]
        generated = sums["vllm:generation_tokens_total"]
        then, before = self._before or (now, generated)
        self._before = (now, generated)
        elapsed = now - then
        # A counter that fell is that of an engine that has started anew.
        added = generated - before if generated >= before else generated
        return Load(
            in_flight=int(sums["pagelet_open_requests"]),
            running=int(sums["vllm:num_requests_running"]),
            waiting=int(sums["vllm:num_requests_waiting"]),
            kv_cache_usage=sums["vllm:kv_cache_usage_perc"]
            / max(1, counts["vllm:kv_cache_usage_perc"]),
            prefix_hit_rate=sums["vllm:prefix_cache_hits_total"] / queries if queries else None,
            tokens_per_second=added / elapsed if elapsed > 0 else 0.0,
        )


def _sums(text: str) -> tuple[Mapping[str, float], Mapping[str, int]]:
    """Of each metric, over its series (the data-parallel ranks): their sum, and how many."""
    sums: dict[str, float] = collections.defaultdict(float)
    counts: dict[str, int] = collections.defaultdict(int)
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            sums[name] += float(value)
            counts[name] += 1
    return sums, counts


async def get(port: int, path: str, headers: Mapping[str, str] = {}) -> tuple[int, str] | None:
    """Status and body of a GET at a port of this machine; None if nobody answers in time."""
    try:
        async with asyncio.timeout(_SECONDS):
            return await _get(port, path, headers)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        return None


async def _get(port: int, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        # 1.0: the end of the connection is the end of the answer, which comes in one piece.
        writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode())
        answer = bytearray()
        while (data := await reader.read(_MOST_BYTES)) and len(answer) < _MOST_BYTES:
            answer += data
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(None, 2)[1]), body.decode()
