"""The router's server in the test's own event loop, in front of scripted replicas."""

import asyncio
import contextlib
import socket

import httpx
import msgspec
import pytest

from pagelet.process.http_server import HTTPServer
from pagelet.protocol.router import ModelRoute, Pool, ProxyOptions, RouterConfig, RoutingOptions
from pagelet.router.http.app import RouterApp
from pagelet.router.state import RouterState
from pagelet.router.tenants.counters import CounterTable
from support.fleet import PATIENT
from support.scripted_replica import ScriptedReplica, scripted

QUICK = {"health_interval": 0.05, "queue_timeout": 30.0, "idle_timeout": 30.0} | PATIENT
IMPATIENT = {"idle_timeout": 1.0}
"""For replicas that fall silent."""


class Routed:
    """A router, its replicas, and a client of it."""

    def __init__(self, state, replicas, client):
        self.state = state
        self.replicas = replicas
        self.client = client

    async def post(self, body=None, path="/v1/completions", **options):
        return await self.client.post(
            path, json={"model": "m", "prompt": "p"} | (body or {}), **options
        )

    async def stream(self, body=None):
        """The bytes of a streamed answer."""
        response = await self.post({"stream": True} | (body or {}))
        assert response.status_code == 200, response.text
        return response.content

    async def wait_for(self, condition):
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  # what changes it is not the test's
                await asyncio.sleep(0.01)

    @property
    def num_available(self):
        return sum(len(pool.available) for pool in self.state.pools.values())


@contextlib.asynccontextmanager
async def routing(config):
    """A running router."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    counters = CounterTable()
    state = RouterState(config, counters)
    server = HTTPServer(RouterApp(state))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await server.listening.wait()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        try:
            yield state, client
        finally:
            server.should_exit = True
            await serving
            counters.close()


@pytest.fixture
def routed():
    """Starts a router in front of replicas, which answer in turn. A value of `config` may be a
    function of the replicas' URLs."""

    @contextlib.asynccontextmanager
    async def start(*replicas, wait=True, route=None, config=None, **proxy):
        replicas = replicas or tuple(ScriptedReplica() for _ in range(2))
        async with scripted(replicas):
            urls = [replica.url for replica in replicas]
            made = RouterConfig(
                models=[ModelRoute(pools=[Pool(replicas=urls)], **(route or {}))],
                routing=RoutingOptions(policy="round_robin"),
                proxy=ProxyOptions(**(QUICK | proxy)),
            )
            for name, value in (config or {}).items():
                value = value(urls) if callable(value) else value
                made = msgspec.structs.replace(made, **{name: value})
            async with routing(made) as (state, client):
                routed = Routed(state, replicas, client)
                if wait:
                    await routed.wait_for(lambda: routed.num_available == len(replicas))
                yield routed

    return start
