"""A router in a thread with an event loop of its own, in front of a server that a test has."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import uvloop

from pagelet.process.http_server import HTTPServer
from pagelet.protocol.router import ModelRoute, Pool, ProxyOptions, RouterConfig
from pagelet.router.http.app import RouterApp
from pagelet.router.state import RouterState
from pagelet.router.tenants.counters import CounterTable
from support.fleet import PATIENT
from support.processes import wait_for


@contextlib.contextmanager
def router_thread(
    *replica_urls: str,
    api_keys_file: str | None = None,
    replicas_file: str | None = None,
    queue_timeout: float = 60.0,
) -> Iterator[int]:
    """The router's port, once it has found all replicas ready. They are told to it by
    `replicas_file` if that is given. `queue_timeout` is how long it waits for one later."""
    urls = [] if replicas_file else list(replica_urls)
    config = RouterConfig(
        models=[ModelRoute(pools=[Pool(replicas=urls, replicas_file=replicas_file)])],
        proxy=ProxyOptions(health_interval=0.1, queue_timeout=queue_timeout, **PATIENT),
        api_keys_file=api_keys_file,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    counters = CounterTable()
    state = RouterState(config, counters)
    made: list[HTTPServer] = []

    async def serve() -> None:
        made.append(HTTPServer(RouterApp(state)))
        await made[0].serve(sockets=[listener])

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        [pool] = state.pools.values()
        wait_for(lambda: len(pool.available) == len(replica_urls))
        yield listener.getsockname()[1]
    finally:
        made[0].should_exit = True
        thread.join(60)
        listener.close()
        counters.close()
    assert not thread.is_alive()
