"""The engine core as a process: `python -m pagelet.engine.core.process --config-fd N`.

One thread does everything: read what the client sent, step, send what came of it. A step's outputs
leave in one write, and reading costs a system call only when there is something to read.
"""

import argparse
import contextlib
import gc
import logging
import os
import selectors
import signal
import socket
import tempfile
import time
import uuid
from typing import Any

import msgspec

from pagelet.engine.core.build import build_core
from pagelet.engine.core.core import EngineCore
from pagelet.engine.core.effective import effective_config
from pagelet.engine.core.foreign_memory import ForeignMemory, read_in_use
from pagelet.engine.core.heartbeat import HeartbeatWriter
from pagelet.engine.core.kv_publisher import KVEventPublisher
from pagelet.engine.core.launch import CoreLaunch
from pagelet.engine.errors import ConfigurationError, ExecutorFailed
from pagelet.process.child import ParentLink
from pagelet.process.frames import FrameReader, encode_frame
from pagelet.process.logs import configure_logging
from pagelet.protocol.engine import (
    MOST_UNACKNOWLEDGED,
    AbortRequests,
    Acknowledge,
    EngineCoreFailed,
    EngineCoreOutputs,
    EngineCoreReady,
    EngineCoreRequest,
    ToCore,
)

_IDLE_SECONDS = 0.5
_READ_BYTES = 1 << 20
_LAST_WORDS_SECONDS = 1.0
"""How long a client may take to read why the core ends."""
_log = logging.getLogger("pagelet.engine.core")


class Connection:
    """The client's end of the core's socket, never blocking."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.unsent = bytearray()
        self.unacknowledged = 0
        self._reader: FrameReader[ToCore] = FrameReader(msgspec.msgpack.Decoder(ToCore))

    def receive(self) -> list[ToCore] | None:
        """Messages that came in; None when the client is gone."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        return self._reader.feed(data) if data else None

    def send(self, message: Any) -> None:
        """Sends as much as the kernel takes; the rest waits for `flush`."""
        self.unsent += encode_frame(message)
        self.flush()

    def flush(self) -> None:
        """Sends what is left. A client that is gone is found out by `receive`."""
        while self.unsent:
            try:
                sent = self.socket.send(self.unsent)
            except (BlockingIOError, ConnectionError):
                return
            del self.unsent[:sent]


class CoreServer:
    """Serves one client at a time: a new connection takes the place of the one before, whose
    requests are aborted. An API process that died can therefore leave nothing running."""

    def __init__(
        self,
        core: EngineCore,
        ready: EngineCoreReady,
        listener: socket.socket,
        heartbeat: HeartbeatWriter,
        publisher: KVEventPublisher | None,
    ) -> None:
        self._core = core
        self._ready = ready
        self._heartbeat = heartbeat
        self._publisher = publisher
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._wakes, self._waker = socket.socketpair()
        self._wakes.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        core.on_wake = self._wake
        self._client: Connection | None = None
        self._last_sent = 0.0
        self._step = 0
        self.stopping = False

    def run(self) -> None:
        """Until `stopping` is set, by a signal."""
        core = self._core
        while not self.stopping:
            client = self._client
            blocked = client is not None and client.unacknowledged >= MOST_UNACKNOWLEDGED
            self._poll(0.0 if core.has_work and not blocked else _IDLE_SECONDS)
            if core.has_work and not blocked:
                core.fill()
                self._beat()
                self._send(core.step())
                self._step += 1
                if self._publisher is not None and (events := core.take_kv_events()):
                    self._publisher.publish(events)
            else:
                core.executor.check()
                if not blocked and time.monotonic() - self._last_sent > _IDLE_SECONDS:
                    self._send(core.idle_stats())
            self._beat(waits=blocked)

    def fail(self, error: ExecutorFailed) -> None:
        """Tells the client why this core ends, so that its requests can say so."""
        if self._client is None:
            return
        self._client.socket.settimeout(_LAST_WORDS_SECONDS)
        with contextlib.suppress(OSError):
            self._client.send(EngineCoreFailed(str(error)))

    def close(self) -> None:
        """Ends the connection."""
        if self._client is not None:
            self._client.socket.close()
        self._selector.close()
        self._wakes.close()
        self._waker.close()

    def _wake(self) -> None:
        """Ends the wait for messages, from another thread."""
        with contextlib.suppress(OSError):  # full, so it wakes already; or closed
            self._waker.send(b"\0")

    def _beat(self, *, waits: bool = False) -> None:
        core = self._core
        # A core that waits for its client stands still, but it is not the one that hangs.
        step_began = time.monotonic() if waits else core.step_began
        self._heartbeat.beat(
            step=self._step, step_began=step_began, num_unfinished=core.num_unfinished
        )

    def _send(self, message: EngineCoreOutputs) -> None:
        self._last_sent = time.monotonic()
        if self._client is not None:
            self._client.unacknowledged += 1
            self._client.send(message)
            self._watch_writes()

    def _watch_writes(self) -> None:
        assert self._client is not None
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._client.unsent else 0)
        if self._selector.get_key(self._client.socket).events != events:
            self._selector.modify(self._client.socket, events)

    def _poll(self, timeout: float) -> None:
        for key, mask in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wakes:
                self._wakes.recv(_READ_BYTES)
            elif self._client is not None and key.fileobj is self._client.socket:
                if mask & selectors.EVENT_WRITE:
                    self._client.flush()
                    self._watch_writes()
                if mask & selectors.EVENT_READ:
                    self._receive()

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        if self._client is not None:
            self._drop_client()
        self._client = Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ)
        self._client.send(self._ready)

    def _drop_client(self) -> None:
        assert self._client is not None
        self._selector.unregister(self._client.socket)
        self._client.socket.close()
        self._client = None
        if self._core.num_unfinished:
            _log.warning("the client is gone: %d requests aborted", self._core.num_unfinished)
        self._core.abort_all()

    def _receive(self) -> None:
        assert self._client is not None
        try:
            messages = self._client.receive()
        except (ValueError, msgspec.DecodeError):
            _log.exception("the client sent what is no message; its connection is closed")
            messages = None
        if messages is None:
            self._drop_client()
            return
        for message in messages:
            match message:
                case EngineCoreRequest():
                    self._core.add(message)
                case AbortRequests(request_ids):
                    self._core.abort(request_ids)
                case Acknowledge(count):
                    self._client.unacknowledged -= count


def _listen(path: str) -> socket.socket:
    """A listener at a path that a core before this one may have left behind."""
    if os.path.exists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def serve(launch: CoreLaunch, link: ParentLink) -> None:
    """Builds the core and serves it until SIGTERM."""
    heartbeat = HeartbeatWriter(launch.heartbeat_path)
    # What this process leaves behind when it is killed goes with the replica's runtime directory.
    tempfile.tempdir = os.path.dirname(launch.socket_path)
    options = launch.options
    foreign = ForeignMemory(launch.heartbeat_path, lambda: read_in_use(options, os.environ))
    try:
        core = build_core(options, heartbeat.stage)
        events = options.kv_events
        publisher = KVEventPublisher(events, launch.engine_index) if events.endpoint else None
    except ConfigurationError as error:
        link.fail(str(error))
    listener = _listen(launch.socket_path)
    pool, layout = core.kv.pool, core.kv.layout
    ready = EngineCoreReady(
        pid=os.getpid(),
        engine_index=launch.engine_index,
        num_kv_blocks=pool.num_usable,
        block_size=core.kv.block_size,
        max_model_len=core.max_model_len,
        kv_cache_bytes=pool.num_usable * layout.block_bytes,
        effective_config=effective_config(options, core),
        incarnation=uuid.uuid4().hex,
        kv_events=None if publisher is None else publisher.sockets,
    )
    info = core.executor.info
    foreign.loaded(held=info.held_bytes, reserve=info.step_bytes)
    _log.info(
        "runs in %s on %s, KV cache in %s, quantization %s; kernels: %s",
        info.dtype,
        info.device,
        info.kv_cache_dtype,
        info.quantization,
        info.kernels,
    )
    server = CoreServer(core, ready, listener, heartbeat, publisher)

    def stop(*_: object) -> None:
        server.stopping = True

    signal.signal(signal.SIGTERM, stop)
    gc.collect()
    gc.freeze()  # the model and its tables live as long as the process: never scan them again
    heartbeat.ready(pool.num_usable * core.kv.block_size // len(layout.groups))
    link.report_serving()
    try:
        server.run()
    except ExecutorFailed as error:
        server.fail(error)
        raise
    finally:
        heartbeat.stopping()
        server.close()
        foreign.close()
        core.close()
        if publisher is not None:
            publisher.close()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int, required=True)
    launch, link = ParentLink.accept(parser.parse_args().config_fd, CoreLaunch)
    configure_logging(launch.log_level, launch.log_format, f"engine core {launch.engine_index}")
    serve(launch, link)


if __name__ == "__main__":
    main()
