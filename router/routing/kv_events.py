"""Follows the KV events of replicas, so that the index says what their caches really hold.

Events are numbered. A gap is filled from the replica's replay socket; where that reaches back too
far, or there is none, the replica's entries are dropped and built anew from what is replayed. The
numbers of a publisher only rise, so one that falls is another publisher: the engine restarted.

All replicas together get one short turn of the event loop at a time: a flood of events delays
routing by a millisecond, not by itself.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import zmq
import zmq.asyncio

from pagelet.protocol.kv_events import KVEventBatch, decode_batch
from pagelet.protocol.replica import KVEventsSource

REPLAY_TIMEOUT = 5.0
"""Seconds without an answer after which a replay is given up."""
_TURN_SECONDS = 0.001
_HIGH_WATER_MARK = 20_000
"""Messages that wait for us before ZMQ drops some, which a replay then brings back."""
_SEQUENCE_BYTES = 8
_MOST_MESSAGE_BYTES = 64 << 20

log = logging.getLogger(__name__)


class EventSink(Protocol):
    """Who wants to know: `Fleet`."""

    def apply_events(self, replica_id: str, batch: KVEventBatch) -> None:
        """The next batch of a replica's events."""
        ...

    def reset(self, replica_id: str) -> None:
        """What was known of the replica's cache is void."""
        ...


@dataclass(slots=True)
class FollowerCounts:
    """What happened so far, for metrics."""

    batches: int = 0
    gaps: int = 0
    replayed: int = 0
    resets: int = 0
    undecodable: int = 0


class KVEventsFollower:
    """Follows one replica until its task is cancelled; one a replica, all with the same `turns`
    (an `asyncio.Lock`) and ZMQ context.

    `host` is what the replica is reached by.
    """

    def __init__(
        self,
        replica_id: str,
        source: KVEventsSource,
        host: str,
        sink: EventSink,
        context: zmq.asyncio.Context,
        turns: asyncio.Lock,
    ) -> None:
        self.counts = FollowerCounts()
        replays: Sequence[str | None] = source.replay_endpoints or [None] * len(source.endpoints)
        self._ranks = [
            _Rank(
                replica_id,
                rank,
                reachable(endpoint, host),
                None if replay is None else reachable(replay, host),
                source.topic.encode(),
                sink,
                context,
                turns,
                self.counts,
            )
            for rank, (endpoint, replay) in enumerate(zip(source.endpoints, replays, strict=True))
        ]

    async def run(self) -> None:
        """Follows all data-parallel ranks."""
        async with asyncio.TaskGroup() as group:
            for rank in self._ranks:
                group.create_task(rank.run())


def reachable(endpoint: str, host: str) -> str:
    """An endpoint as bound, as it is to be connected to: a wildcard host becomes `host`.

    >>> reachable("tcp://*:5557", "10.0.0.7")
    'tcp://10.0.0.7:5557'
    """
    scheme, separator, address = endpoint.partition("://")
    if scheme != "tcp":
        return endpoint
    bound, _, port = address.rpartition(":")
    if bound not in ("*", "0.0.0.0", "[::]", "::"):
        return endpoint
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}{separator}{shown}:{port}"


class _Rank:
    """One publisher."""

    def __init__(
        self,
        replica_id: str,
        rank: int,
        endpoint: str,
        replay_endpoint: str | None,
        topic: bytes,
        sink: EventSink,
        context: zmq.asyncio.Context,
        turns: asyncio.Lock,
        counts: FollowerCounts,
    ) -> None:
        self._replica_id = replica_id
        self._rank = rank
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._topic = topic
        self._sink = sink
        self._context = context
        self._turns = turns
        self._counts = counts
        self._applied = -1
        """Number of the last batch that counts."""
        self._last_payload = b""
        self._live = -1
        """Number of the last batch that came by itself, not by replay."""
        self._ahead: tuple[int, bytes] | None = None
        """A batch before which others are missing."""

    async def run(self) -> None:
        with self._socket(zmq.SUB, self._endpoint) as sub:
            sub.subscribe(self._topic)
            await self._replay(0)  # what was cached before we came
            while True:
                await sub.poll()
                await self._turns_of(sub, self._on_live)
                if self._ahead is not None:
                    await self._fill_gap(*self._ahead)
                    self._ahead = None

    @contextlib.contextmanager
    def _socket(self, kind: int, endpoint: str) -> Iterator[zmq.asyncio.Socket]:
        sock = self._context.socket(kind)
        try:
            sock.set_hwm(_HIGH_WATER_MARK)
            sock.setsockopt(zmq.MAXMSGSIZE, _MOST_MESSAGE_BYTES)
            sock.connect(endpoint)
            yield sock
        finally:
            sock.close(linger=0)

    async def _turns_of(
        self, sock: zmq.asyncio.Socket, handle: Callable[[int, bytes], bool]
    ) -> bool:
        """Handles what has arrived, a turn at a time. False when there is nothing more, true once
        `handle` says that it is enough."""
        while True:
            async with self._turns:
                ends = time.perf_counter() + _TURN_SECONDS
                while time.perf_counter() < ends:
                    try:
                        *_, number, payload = await sock.recv_multipart(zmq.NOBLOCK)
                    except zmq.Again:
                        return False
                    except ValueError:  # fewer parts than two
                        number = b""
                    if len(number) != _SEQUENCE_BYTES:
                        self._counts.undecodable += 1
                        continue
                    if handle(int.from_bytes(number, "big", signed=True), payload):
                        return True
            await asyncio.sleep(0)

    def _on_live(self, number: int, payload: bytes) -> bool:
        """True if something is missing before this batch."""
        restarted = number <= self._live
        self._live = number
        if restarted:
            self._forget()
        elif number <= self._applied:
            return False  # a replay was faster
        if number == self._applied + 1:
            self._apply(number, payload)
            return False
        self._ahead = (number, payload)
        return True

    async def _fill_gap(self, number: int, payload: bytes) -> None:
        """Gets what is missing before a batch, or starts anew from it."""
        self._counts.gaps += 1
        # From the last batch that we have: it tells whether this is still the same publisher.
        await self._replay(max(0, self._applied))
        if number > self._applied:
            if number != self._applied + 1:
                self._forget()
            self._apply(number, payload)

    async def _replay(self, first: int) -> None:
        """Applies all batches from number `first` that the replica still has; where they do not
        join up with what was applied, all before is forgotten."""
        if self._replay_endpoint is None:
            return
        again = False

        def on_replayed(number: int, payload: bytes) -> bool:
            nonlocal again
            if number < 0:  # END_OF_REPLAY
                return True
            if number == self._applied and payload != self._last_payload:
                again = True  # another publisher with the same numbers
                return True
            if number > self._applied:
                if number > self._applied + 1:
                    self._forget()
                self._apply(number, payload)
                self._counts.replayed += 1
            return False

        with self._socket(zmq.DEALER, self._replay_endpoint) as dealer:
            await dealer.send_multipart([b"", first.to_bytes(_SEQUENCE_BYTES, "big")])
            while not await self._turns_of(dealer, on_replayed):
                if not await dealer.poll(REPLAY_TIMEOUT * 1e3):
                    log.warning("%s: no answer from %s", self._replica_id, self._replay_endpoint)
                    break
        if again:
            self._forget()
            await self._replay(0)

    def _forget(self) -> None:
        """What was known is void."""
        if self._applied >= 0:
            self._counts.resets += 1
        self._applied = -1
        self._sink.reset(self._replica_id)

    def _apply(self, number: int, payload: bytes) -> None:
        self._applied, self._last_payload = number, payload
        self._counts.batches += 1
        try:
            batch = decode_batch(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._counts.undecodable += 1
            if self._counts.undecodable == 1:
                log.warning("%s: a batch of KV events is unreadable: %s", self._replica_id, error)
            self._sink.reset(self._replica_id)  # it may have said anything
            return
        batch.data_parallel_rank = self._rank  # whose socket it is, whatever it says itself
        self._sink.apply_events(self._replica_id, batch)
