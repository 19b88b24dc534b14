"""Follows the KV events of a pool's replicas, for as long as each is there."""

import asyncio
import logging
from collections.abc import Iterable

import zmq.asyncio

from pagelet.protocol.replica import KVEventsSource
from pagelet.router.replicas.replica import Replica
from pagelet.router.routing.kv_events import EventSink, FollowerCounts, KVEventsFollower

_log = logging.getLogger(__name__)


class EventFollowers:
    """One follower a replica that publishes events. For one event loop."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._turns = asyncio.Lock()
        self._context: zmq.asyncio.Context | None = None
        self._followed: dict[str, tuple[KVEventsSource, KVEventsFollower, asyncio.Task[None]]] = {}

    @property
    def counts(self) -> Iterable[FollowerCounts]:
        """Of each replica that is followed."""
        return [follower.counts for _, follower, _ in self._followed.values()]

    def follow(self, replica: Replica) -> None:
        """Follows what a replica publishes now, in place of what it published before."""
        description = replica.description
        source = None if description is None else description.kv_events
        known = self._followed.get(replica.id)
        if known is not None and known[0] == source:
            return
        self.forget(replica.id)
        if source is None:
            return
        if self._context is None:
            self._context = zmq.asyncio.Context()
        follower = KVEventsFollower(
            replica.id, source, replica.upstream.host, self._sink, self._context, self._turns
        )
        task = asyncio.create_task(self._run(replica.id, follower))
        self._followed[replica.id] = source, follower, task

    def forget(self, replica_id: str) -> None:
        """Follows a replica no more."""
        known = self._followed.pop(replica_id, None)
        if known is not None:
            known[2].cancel()

    async def close(self) -> None:
        """Follows none."""
        tasks = [task for _, _, task in self._followed.values()]
        for replica_id in list(self._followed):
            self.forget(replica_id)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)

    async def _run(self, replica_id: str, follower: KVEventsFollower) -> None:
        try:
            await follower.run()
        except Exception:
            # Without events the router's own decisions are what it knows.
            _log.exception("KV events of replica %s cannot be followed", replica_id)
            self._sink.reset(replica_id)
