"""A pool goes on looking for its replicas, whatever a source of them meets with."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from pagelet.protocol.router import ProxyOptions, RoutingOptions
from pagelet.router.replicas import pool as module
from pagelet.router.replicas.discovery import Endpoint
from pagelet.router.replicas.pool import ReplicaPool


class Faulty:
    """Tells one replica more each time that it is asked, and then fails as nobody expected."""

    def __init__(self) -> None:
        self.times = 0

    async def watch(self) -> AsyncIterator[Sequence[Endpoint]]:
        """See `Discovery`."""
        self.times += 1
        yield [Endpoint(f"r{number}", "http://127.0.0.1:1") for number in range(self.times)]
        raise RuntimeError("odd")


async def test_a_source_that_fails_is_asked_again(monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "_LOOK_AGAIN_SECONDS", 0.01)
    enough = asyncio.Event()

    def on_replica(replica) -> None:
        if len(pool.replicas) == 3:
            enough.set()

    options = ProxyOptions(health_interval=0.01)
    pool = ReplicaPool("p", [Faulty()], RoutingOptions(), options, [], on_replica=on_replica)
    pool.start()
    try:
        async with asyncio.timeout(30):
            await enough.wait()
    finally:
        await pool.close()
    assert {"r0", "r1", "r2"} <= pool.replicas.keys()
    assert "the replicas of pool p cannot be told" in caplog.text
