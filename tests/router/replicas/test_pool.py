"""A pool goes on looking for its replicas, whatever a source of them meets with, and tells what
becomes of them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from pagelet.protocol.router import ProxyOptions, RoutingOptions
from pagelet.router.replicas import pool as module
from pagelet.router.replicas.change_log import ChangeLog
from pagelet.router.replicas.discovery import Endpoint
from pagelet.router.replicas.pool import ReplicaPool
from support.fleet import PATIENT
from support.scripted_replica import ScriptedReplica, scripted


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

    options = ProxyOptions(health_interval=0.01, **PATIENT)
    pool = ReplicaPool(
        "p", [Faulty()], RoutingOptions(), options, [], on_replica=on_replica, changes=ChangeLog()
    )
    pool.start()
    try:
        async with asyncio.timeout(60):
            await enough.wait()
    finally:
        await pool.close()
    assert {"r0", "r1", "r2"} <= pool.replicas.keys()
    assert "the replicas of pool p cannot be told" in caplog.text


class Told:
    """Tells what it is given."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self._sets: asyncio.Queue[Sequence[Endpoint]] = asyncio.Queue()
        self.tell(*endpoints)

    def tell(self, *endpoints: Endpoint) -> None:
        self._sets.put_nowait(endpoints)

    async def watch(self) -> AsyncIterator[Sequence[Endpoint]]:
        """See `Discovery`."""
        while True:
            yield await self._sets.get()


async def test_each_change_of_a_replica_is_logged_once_and_in_order(caplog) -> None:
    caplog.set_level(logging.INFO)
    options = ProxyOptions(health_interval=0.01, **PATIENT)
    server, other = ScriptedReplica(), ScriptedReplica()
    async with scripted((server, other)):
        serves, drains = Endpoint("r", server.url), Endpoint("r", server.url, takes_requests=False)
        moved = Endpoint("r", other.url)
        changes, sources = ChangeLog(), [Told(serves), Told(serves)]
        pools = [  # before and after a change of the configuration
            ReplicaPool(
                "p", [source], RoutingOptions(), options, [], on_replica=seen, changes=changes
            )
            for source in sources
        ]

        async def until(holds: Callable[[ReplicaPool], bool]) -> None:
            async with asyncio.timeout(60):
                while not all(holds(pool) for pool in pools):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        def tell(*endpoints: Endpoint) -> None:
            for source in sources:
                source.tell(*endpoints)

        for pool in pools:
            pool.start()
        try:
            await until(lambda pool: bool(pool.available))
            tell(drains)
            await until(lambda pool: "r" in pool.keepers)
            await until(lambda pool: pool.keepers["r"].health == "ready")
            server.draining = True
            await until(lambda pool: pool.keepers["r"].health == "draining")
            tell(moved)  # its engine serves again
            await until(lambda pool: bool(pool.available))
            other.draining = True
            await until(lambda pool: pool.replicas["r"].health == "draining")
            tell()
            await until(lambda pool: not pool.replicas)
        finally:
            for pool in pools:
                await pool.close()
    told = [record.getMessage() for record in caplog.records if "replica r" in record.getMessage()]
    assert told == [
        "replica r is ready",
        "replica r takes no requests any more",
        "replica r has moved to " + other.url,
        "replica r is ready",
        "replica r is draining",
        "replica r is gone",
    ]


def seen(replica: object) -> None:
    """Nobody to tell."""
