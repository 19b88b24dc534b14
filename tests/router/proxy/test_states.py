"""A router goes over to another configuration while requests run."""

import asyncio
import contextlib
import json
import socket

import httpx
import msgspec
import pytest

from pagelet.process import open_requests
from pagelet.process.atomic import write_atomically
from pagelet.process.http_server import HTTPServer
from pagelet.protocol.router import ModelRoute, Pool, ProxyOptions, RouterConfig
from pagelet.router.http.app import RouterApp
from pagelet.router.state import RouterState
from pagelet.router.states import States, follow_file
from pagelet.router.tenants.counters import CounterTable
from support.fleet import PATIENT
from support.scripted_replica import ScriptedReplica, scripted

PROXY = ProxyOptions(health_interval=0.05, queue_timeout=30.0, **PATIENT)


def config(*pools):
    """A model for each pair of a name and a replica."""
    routes = [
        ModelRoute(name=name, pools=[Pool(name=name, replicas=[replica.url])])
        for name, replica in pools
    ]
    return RouterConfig(models=routes, proxy=PROXY)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serving(app):
    """A client of the application's server."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = HTTPServer(app)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await server.listening.wait()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        await task


def in_two_parts(gate):
    """A stream whose second part waits for the gate."""

    async def answer(asked):
        asked.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        asked.writer.write(b"data: a\n\n")
        await gate.wait()
        asked.writer.write(b"data: [DONE]\n\n")
        await asked.writer.drain()
        asked.writer.close()

    return answer


async def test_requests_end_as_they_began_and_new_ones_meet_the_new_configuration() -> None:
    gate = asyncio.Event()
    first, second = ScriptedReplica(), ScriptedReplica()
    first.answer = in_two_parts(gate)
    body = {"model": "m", "prompt": "p"}
    async with scripted([first, second]), contextlib.AsyncExitStack() as stack:
        counters = stack.enter_context(contextlib.closing(CounterTable()))
        before = RouterState(config(("m", first)), counters)
        app = RouterApp(before)
        client = await stack.enter_async_context(serving(app))
        streamed = client.stream("POST", "/v1/completions", json=body | {"stream": True})
        async with streamed as response:
            parts = response.aiter_bytes()
            assert await anext(parts) == b"data: a\n\n"
            await app.states.replace(RouterState(config(("m", second)), counters, before))
            assert app.state is not before
            for _ in range(3):
                answer = await client.post("/v1/completions", json=body)
                assert answer.headers["x-pagelet-replica"] == second.url
            probes = first.probes
            await until(lambda: first.probes > probes)  # it is still looked after
            gate.set()
            assert await anext(parts) == b"data: [DONE]\n\n"
            assert [part async for part in parts] == []

        # The old state ends with its last request.
        async def is_left_alone():
            probes = first.probes
            await asyncio.sleep(0.3)
            return first.probes == probes

        async with asyncio.timeout(60):
            while not await is_left_alone():
                pass
        assert app.state.metrics is before.metrics
        assert await app.states.drain(1.0)
        assert (await client.post("/v1/completions", json=body)).status_code == 503


@pytest.mark.parametrize("end", [States.drain, States.finish])
@pytest.mark.parametrize("comes", [True, False])
async def test_no_end_waits_for_a_body_that_does_not_come(monkeypatch, end, comes) -> None:
    monkeypatch.setattr(open_requests, "BODY_SECONDS", 600.0 if comes else 0.1)
    replica = ScriptedReplica()
    body = json.dumps({"model": "m", "prompt": "p"}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    async with scripted([replica]), contextlib.AsyncExitStack() as stack:
        counters = stack.enter_context(contextlib.closing(CounterTable()))
        app = RouterApp(RouterState(config(("m", replica)), counters))
        client = await stack.enter_async_context(serving(app))
        await until(lambda: app.state.available)
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(head.encode() + body[:5])
        await until(lambda: app.state.open_requests == 1)
        ending = asyncio.create_task(end(app.states, 60.0))
        await asyncio.sleep(0)
        writer.write(body[5:] if comes else body[5:10])
        answer = await (reader.readuntil(b"\r\n\r\n") if comes else reader.read())
        if comes:
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        else:
            assert answer.startswith(b"HTTP/1.1 503 ")
            for told in (b"retry-after: 1", b"connection: close", b'"draining"'):
                assert told in answer
        assert await ending
        assert len(replica.asked) == comes
        writer.close()


async def test_a_file_is_followed_and_a_broken_one_changes_nothing(tmp_path, caplog) -> None:
    path = tmp_path / "router.json"
    one, two = ScriptedReplica(), ScriptedReplica()
    async with scripted([one, two]), contextlib.AsyncExitStack() as stack:
        counters = stack.enter_context(contextlib.closing(CounterTable()))
        states = States(RouterState(config(("one", one)), counters))
        await stack.enter_async_context(states.running())
        following = asyncio.create_task(follow_file(states, path, counters))
        path.write_bytes(msgspec.json.encode(config(("one", one), ("two", two))))
        await until(lambda: len(states.current.pools) == 2)
        await until(lambda: len(states.current.available) == 2)
        good = states.current
        for number, broken in enumerate((b"{", b'{"models": [], "nothing": 1}'), 1):
            write_atomically(path, broken)  # half of it would be one complaint more
            await until(lambda: caplog.text.count("stays in force") == number)  # noqa: B023
            assert states.current is good
        path.write_bytes(msgspec.json.encode(config(("two", two))))
        await until(lambda: len(states.current.pools) == 1)
        following.cancel()
