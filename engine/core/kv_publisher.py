"""Publishes KV events over ZMQ, as vLLM's `ZmqEventPublisher` does: a router that follows them
knows which prefixes this replica holds.

The engine core's loop only queues a step's events; a thread numbers, encodes and sends them, and
answers subscribers that missed some. ZMQ is imported only where a publisher is made.
"""

import collections
import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from pagelet.engine.errors import ConfigurationError
from pagelet.protocol.config import KVEventsOptions
from pagelet.protocol.engine import KVEventSockets
from pagelet.protocol.kv_events import END_OF_REPLAY, KVEvent, KVEventBatch

if TYPE_CHECKING:
    import zmq

HIGH_WATER_MARK = 100_000
"""Messages that ZMQ queues for a slow subscriber before it drops any."""
REPLAY_BATCHES = 10_000
"""Batches kept for subscribers that missed some."""
_SEQUENCE_BYTES = 8
_LINGER_MS = 500

log = logging.getLogger(__name__)


class KVEventPublisher:
    """A PUB socket for events and, if asked for, a ROUTER socket for their replay.

    Subscribers get `[topic, sequence number, payload]`, the number as 8 bytes big-endian, the
    payload as msgpack of `KVEventBatch`. A replay client sends the first number that it wants and
    gets `[number, payload]` for each batch that is still kept, then `[END_OF_REPLAY, b""]`; with
    or without an empty delimiter before it, as it sent it (REQ and DEALER sockets).

    The replay endpoint is bound. That of the events is bound if its host is a wildcard
    (`tcp://*:5557`, `tcp://[::]:5557`), its port is 0, or it is a path (`ipc://...`), and else
    connected to, as vLLM does. Data-parallel rank i adds i to the port; port 0 takes a free one.
    """

    def __init__(self, options: KVEventsOptions, data_parallel_rank: int = 0) -> None:
        """Opens the sockets. Raises `ConfigurationError` if an endpoint cannot be used."""
        import zmq

        assert options.endpoint is not None
        self._rank = data_parallel_rank
        self._topic = options.topic.encode()
        self._context = zmq.Context()
        try:
            self._pub = self._open(zmq.PUB, options.endpoint, "--kv-events-endpoint")
            self._router = None
            if options.replay_endpoint is not None:
                self._router = self._open(
                    zmq.ROUTER, options.replay_endpoint, "--kv-events-replay-endpoint"
                )
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.sockets: KVEventSockets | None = None
        """Where subscribers find the events; None if they go to a socket of someone else's."""
        if _is_bound(options.endpoint):
            replay = None if self._router is None else _bound_address(self._router)
            self.sockets = KVEventSockets(_bound_address(self._pub), replay, options.topic)
        self._queue: collections.deque[KVEventBatch] = collections.deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, events: list[KVEvent]) -> None:
        """Queues one step's events as one batch; returns at once."""
        self._queue.append(KVEventBatch(time.time(), events, self._rank))
        self._wake()

    def close(self) -> None:
        """Sends what is queued, then closes the sockets."""
        self._closing = True
        self._wake()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _open(self, kind: int, endpoint: str, option: str) -> "zmq.Socket[bytes]":
        import zmq

        address = offset_endpoint(endpoint, self._rank)
        sock = self._context.socket(kind)
        sock.set_hwm(HIGH_WATER_MARK)
        try:
            if kind == zmq.ROUTER or _is_bound(address):
                sock.bind(address)
            else:
                sock.connect(address)
        except zmq.ZMQError as error:
            raise ConfigurationError(
                f"{option} {address}: {error.strerror}; give one such as tcp://*:5557"
            ) from None
        return sock

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        import zmq

        encoder = msgspec.msgpack.Encoder()
        kept: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=REPLAY_BATCHES)
        sequence = 0
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, zmq.POLLIN)
        asked = False
        while True:
            closing = self._closing  # read before the queue is emptied, so that nothing is lost
            while self._queue:
                payload = encoder.encode(self._queue.popleft())
                number = sequence.to_bytes(_SEQUENCE_BYTES, "big")
                self._pub.send_multipart((self._topic, number, payload))
                kept.append((sequence, payload))
                sequence += 1
            if closing:
                break
            if self._router is not None and asked:
                # Once the queue is empty: a replay has all that was published before it.
                _replay(self._router, kept)
            ready = dict(poller.poll())
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            asked = self._router in ready
        self._context.destroy(linger=_LINGER_MS)


def offset_endpoint(endpoint: str, data_parallel_rank: int) -> str:
    """The endpoint of a data-parallel rank: `tcp://*:5557` becomes `tcp://*:5558` for rank 1, and
    a path gets a suffix. Raises `ConfigurationError` for a TCP endpoint without a port."""
    if data_parallel_rank == 0:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{data_parallel_rank}"
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise ConfigurationError(f"KV events endpoint {endpoint}: give a port, as in tcp://*:5557")
    return endpoint if int(port) == 0 else f"{host}:{int(port) + data_parallel_rank}"


def _is_bound(endpoint: str) -> bool:
    """Whether this side binds an endpoint for events; it connects to others, as vLLM does."""
    return endpoint.endswith(":0") or any(mark in endpoint for mark in ("*", "::", "ipc://"))


def _bound_address(sock: "zmq.Socket[bytes]") -> str:
    import zmq

    return sock.getsockopt_string(zmq.LAST_ENDPOINT)


def _replay(router: "zmq.Socket[bytes]", kept: "collections.deque[tuple[int, bytes]]") -> None:
    *envelope, wanted = router.recv_multipart()
    if len(wanted) != _SEQUENCE_BYTES:
        log.warning("a KV event replay was asked for with %d bytes, not 8", len(wanted))
        return
    first = int.from_bytes(wanted, "big")
    for sequence, payload in kept:
        if sequence >= first:
            number = sequence.to_bytes(_SEQUENCE_BYTES, "big")
            router.send_multipart((*envelope, number, payload))
    router.send_multipart((*envelope, END_OF_REPLAY, b""))
