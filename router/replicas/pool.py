"""The replicas of one pool: found, watched, chosen from."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pagelet.protocol.router import ProxyOptions, RoutingOptions
from pagelet.router.queue.waiting_room import WaitingRoom
from pagelet.router.replicas.change_log import ChangeLog
from pagelet.router.replicas.discovery import Discovery, Endpoint
from pagelet.router.replicas.events import EventFollowers
from pagelet.router.replicas.prober import Prober
from pagelet.router.replicas.replica import Replica
from pagelet.router.routing.fleet import Fleet
from pagelet.router.routing.types import Decision, RouteRequest
from pagelet.router.upstream.client import ConnectFailed
from pagelet.router.upstream.connection import Headers, UpstreamError

_log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS: Final = 1.0


class ReplicaLeaves(UpstreamError):
    """The replica was taken out of the pool; what it does is to go on elsewhere."""


class ReplicaPool:
    """Owned by one event loop. `start` and `close` it there."""

    def __init__(
        self,
        name: str,
        discoveries: Sequence[Discovery],
        routing: RoutingOptions,
        options: ProxyOptions,
        headers: Headers,
        *,
        on_replica: Callable[[Replica], None],
        changes: ChangeLog,
        num_workers: int = 1,
    ) -> None:
        """`headers` authorise the router with the replicas. `on_replica` is called whenever one
        comes, changes or goes, which `changes` tells. `num_workers` processes share the replicas'
        room evenly."""
        self.name = name
        self.options = options
        self.fleet = Fleet(routing)
        self.room = WaitingRoom(size=options.queue_size, timeout=options.queue_timeout)
        self.events = EventFollowers(self.fleet)
        self.replicas: dict[str, Replica] = {}
        self.keepers: dict[str, Replica] = {}
        """Those that take no requests, and may keep responses still."""
        self._headers = headers
        self._on_replica = on_replica
        self._changes = changes
        self._num_workers = num_workers
        self._discoveries = discoveries
        self._found: list[Sequence[Endpoint]] = [() for _ in discoveries]
        self._probers: dict[str, tuple[Prober, asyncio.Task[None]]] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._changed: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begins to look for replicas, and after them."""
        for number, discovery in enumerate(self._discoveries):
            self._watchers.append(asyncio.create_task(self._watch(number, discovery)))

    async def close(self) -> None:
        """Ends all that `start` began."""
        tasks = [*self._watchers, *(task for _, task in self._probers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.events.close()
        for replica in (*self.replicas.values(), *self.keepers.values()):
            replica.upstream.close()

    @property
    def available(self) -> Collection[str]:
        """Ids of the replicas that take requests now."""
        now = time.monotonic()
        return [r.id for r in self.replicas.values() if r.takes_requests(now)]

    def choose(self, request: RouteRequest, excluded: Collection[str]) -> Decision | None:
        """The replica for a request; None if there is none for now."""
        now, available = time.monotonic(), self.available
        if request.adapter is not None:  # in an update, some may not have it yet
            available = [r for r in available if request.adapter in self.replicas[r].model_names]
        with_room = [
            replica_id
            for replica_id in available
            if self.fleet.in_flight(replica_id) < self._share(self.replicas[replica_id])
        ]
        eligible = with_room or available
        return self.fleet.choose(request, now, excluded=excluded, eligible=eligible)

    async def wait_for_change(self, seconds: float) -> None:
        """Until some replica has come, changed or gone, or the time is up."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._changed,), timeout=seconds)

    # What requests tell of replicas.

    def on_success(self, replica: Replica) -> None:
        """It gave an answer."""
        replica.breaker.success()

    def on_failure(self, replica: Replica, error: UpstreamError | None = None) -> None:
        """It gave none, or broke one off."""
        if isinstance(error, ReplicaLeaves) or replica.health == "gone":
            return
        now = time.monotonic()
        if replica.breaker.failure(now):
            _log.warning("replica %s fails again and again: no requests for a while", replica.id)
            self._change_at(replica, replica.breaker.open_until)
        if isinstance(error, ConnectFailed) and replica.health == "ready":
            self._changes.tell(replica.id, "is unreachable", logging.WARNING, why=str(error))
            replica.health = "unreachable"
            self._on_change(replica)
        if replica.id in self._probers:
            self._probers[replica.id][0].hurry()

    def on_refusal(self, replica: Replica, retry_after: float) -> None:
        """It takes no requests for so many seconds, as it said."""
        replica.held_until = max(replica.held_until, time.monotonic() + retry_after)
        self._change_at(replica, replica.held_until)
        if replica.id in self._probers:
            self._probers[replica.id][0].hurry()

    def _change_at(self, replica: Replica, when: float) -> None:
        self._on_change(replica)
        delay = when - time.monotonic() + 0.001
        asyncio.get_running_loop().call_later(delay, self._recheck, replica)

    def _recheck(self, replica: Replica) -> None:
        if self.replicas.get(replica.id) is replica:
            self._on_change(replica)

    # What discovery and probes tell.

    async def _watch(self, number: int, discovery: Discovery) -> None:
        while True:
            try:
                async for endpoints in discovery.watch():
                    self._found[number] = endpoints
                    self._take_set([endpoint for found in self._found for endpoint in found])
                return  # a fixed set
            except Exception:  # a router that looks no more would lose one replica after the other
                _log.exception("the replicas of pool %s cannot be told; looking again", self.name)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _take_set(self, endpoints: Sequence[Endpoint]) -> None:
        wanted = {endpoint.id: endpoint for endpoint in endpoints}
        before = self.replicas | self.keepers
        for replica in before.values():
            now = wanted.get(replica.id)
            if now != replica.endpoint:
                self._tell(replica.endpoint, now)
                self._remove(replica)
        for endpoint in wanted.values():
            if endpoint.id not in self.replicas and endpoint.id not in self.keepers:
                self._add(endpoint, before.get(endpoint.id))

    def _add(self, endpoint: Endpoint, before: Replica | None) -> None:
        """`before` is the same replica as it was while it took requests, or while it took none."""
        try:
            replica = Replica.at(endpoint, self.options)
        except ValueError as error:
            _log.warning("replica %s is left out: %s", endpoint.id, error)
            return
        if before is not None and before.endpoint.url == endpoint.url:
            replica.description = before.description  # whoever asks what it keeps need not wait
        if endpoint.takes_requests:
            self.replicas[replica.id] = replica
            prober = Prober(replica, self._headers, self._on_change, self._changes)
        else:
            self.keepers[replica.id] = replica
            # How it is matters to nobody any more: only what it keeps.
            prober = Prober(replica, self._headers, lambda replica: None, None)
        self._probers[replica.id] = prober, asyncio.create_task(prober.run())

    def _tell(self, before: Endpoint, now: Endpoint | None) -> None:
        if now is None:
            self._changes.tell_gone(before.id)
        elif not now.takes_requests:
            self._changes.tell(before.id, "takes no requests any more")
        elif now.url != before.url:
            self._changes.tell(before.id, f"has moved to {now.url}")

    def _remove(self, replica: Replica) -> None:
        _, task = self._probers.pop(replica.id)
        task.cancel()
        if self.keepers.pop(replica.id, None) is not None:
            replica.upstream.close()
            return
        del self.replicas[replica.id]
        replica.health = "gone"
        self._on_change(replica)
        replica.upstream.close()
        if replica.is_pagelet and self.available:
            # Others can go on with its streams, so that nobody has to wait for its end.
            replica.upstream.move(ReplicaLeaves("the replica leaves"))

    def _set_capacity(self) -> None:
        """What replicas that take requests may have in flight. What others still work on, as in a
        drain, takes no place away from new requests."""
        now, capacity, elsewhere = time.monotonic(), 0, 0
        for replica in self.replicas.values():
            if replica.takes_requests(now):
                capacity += self._share(replica)
            else:
                elsewhere += self.fleet.in_flight(replica.id)
        self.room.set_capacity(capacity + elsewhere if capacity else 0)

    def _share(self, replica: Replica) -> int:
        """Answers that this worker of the router may have in flight on a replica."""
        return -(-replica.capacity // self._num_workers)

    def _on_change(self, replica: Replica) -> None:
        if replica.health == "gone":
            self.fleet.remove(replica.id)
            self.events.forget(replica.id)
        elif replica.health != "unknown" and (replica.model_names or replica.is_pagelet):
            self.fleet.add(replica.id, replica.description)
            self.events.follow(replica)
        self._set_capacity()
        self._on_replica(replica)
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None
