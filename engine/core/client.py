"""The API process's end of an engine core's socket."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from pagelet.process.frames import FrameReader, encode_frame
from pagelet.protocol.engine import (
    MOST_UNACKNOWLEDGED,
    Acknowledge,
    EngineCoreFailed,
    EngineCoreOutputs,
    EngineCoreReady,
    FromCore,
    ToCore,
)

_RETRY_SECONDS = 0.05
_log = logging.getLogger("pagelet.engine.client")


class CoreEvents(Protocol):
    """Who is told what a core says."""

    def on_ready(self, engine_index: int, ready: EngineCoreReady) -> None:
        """The core serves; also after it was started again."""
        ...

    def on_outputs(self, engine_index: int, outputs: EngineCoreOutputs) -> None:
        """A step ended."""
        ...

    def on_lost(self, engine_index: int, cause: str | None) -> None:
        """The connection broke: the core's requests are gone. `cause` is the core's last word, if
        it had any."""
        ...


class CoreClient:
    """Keeps one connection to one core, and makes it anew whenever the core comes back."""

    def __init__(self, engine_index: int, socket_path: str, events: CoreEvents) -> None:
        self.engine_index = engine_index
        self._path = socket_path
        self._events = events
        self._transport: asyncio.Transport | None = None
        self.ready: EngineCoreReady | None = None
        self._handled = 0
        self._cause: str | None = None
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    @property
    def connected(self) -> bool:
        """Whether the core is there and has its model loaded."""
        return self.ready is not None

    def send(self, message: ToCore) -> None:
        """Queues a message; the core must be connected."""
        assert self._transport is not None
        self._transport.write(encode_frame(message))

    async def close(self) -> None:
        """Ends the connection; the core aborts its requests."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._transport is not None:
            self._transport.close()

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._lost = loop.create_future()
            try:
                self._transport, _ = await loop.create_unix_connection(
                    lambda: _CoreProtocol(self._receive, self._end), self._path
                )
            except OSError:  # not there yet, or restarting
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await self._lost

    def _end(self) -> None:
        """Called as soon as the loop knows, so that nothing is written to a dead connection."""
        self._transport = None
        self._handled = 0
        cause, self._cause = self._cause, None
        if self.ready is not None:
            self.ready = None
            self._events.on_lost(self.engine_index, cause)
        if not self._lost.done():
            self._lost.set_result(None)

    def _acknowledge(self) -> None:
        count, self._handled = self._handled, 0
        if self._transport is not None:
            self.send(Acknowledge(count))

    def _receive(self, message: FromCore) -> None:
        if isinstance(message, EngineCoreOutputs):
            self._events.on_outputs(self.engine_index, message)
            self._handled += 1
            if self._handled == MOST_UNACKNOWLEDGED // 2:  # each wakes the core
                # Called after the readers that these outputs woke: they have passed them on then.
                asyncio.get_running_loop().call_soon(self._acknowledge)
        elif isinstance(message, EngineCoreFailed):
            self._cause = message.error
        else:
            self.ready = message
            self._events.on_ready(self.engine_index, message)


class _CoreProtocol(asyncio.Protocol):
    def __init__(self, on_message: Callable[[FromCore], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._reader: FrameReader[FromCore] = FrameReader(msgspec.msgpack.Decoder(FromCore))
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
        except Exception:
            # One bad message must not leave requests waiting for ever: give the connection up.
            _log.exception("reading from an engine core failed; the connection is made anew")
            assert self._transport is not None
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_end()
