"""What a replica's metrics tell of its load."""

import asyncio

import pytest

from pagelet.local.probe import Load, Sampler, get


def metrics(generated: float, queries: float = 0, hits: float = 0) -> str:
    return f"""\
# HELP vllm:num_requests_running Requests in the batch.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="a model",engine="0"}} 2.0
vllm:num_requests_running{{model_name="a model",engine="1"}} 3.0
vllm:num_requests_waiting{{model_name="a\u2028model",engine="0"}} 1.0
vllm:kv_cache_usage_perc{{model_name="a model",engine="0"}} 0.25
vllm:kv_cache_usage_perc{{model_name="a model",engine="1"}} 0.75
vllm:generation_tokens_total{{model_name="a model",engine="0"}} {generated}
vllm:prefix_cache_queries_total{{model_name="a model",engine="0"}} {queries}
vllm:prefix_cache_hits_total{{model_name="a model",engine="0"}} {hits}
pagelet_open_requests 6
"""


def test_ranks_are_added_up_and_rates_are_those_since_the_last_look() -> None:
    sampler = Sampler()
    assert sampler.take(metrics(1000), now=10.0) == Load(
        in_flight=6, running=5, waiting=1, kv_cache_usage=0.5
    )
    later = sampler.take(metrics(1300, queries=200, hits=50), now=12.0)
    assert (later.tokens_per_second, later.prefix_hit_rate) == (150.0, 0.25)
    # After a restart counters begin at 0.
    assert sampler.take(metrics(40), now=14.0).tokens_per_second == 20.0


def test_a_server_that_says_nothing_of_this_kind_has_no_load() -> None:
    assert Sampler().take("", now=1.0) == Load()


async def test_a_get_has_the_whole_answer() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n" + path.encode() * 9999)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await get(port, "/ready") == (503, "/ready" * 9999)
    assert await get(port, "/ready") is None


@pytest.mark.parametrize("garbage", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 yes\r\n\r\n"])
async def test_something_else_on_the_port_is_no_answer(garbage: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(garbage)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        assert await get(server.sockets[0].getsockname()[1], "/ready") is None
