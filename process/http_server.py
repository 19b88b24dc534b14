"""Uvicorn as our servers run it."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from pagelet.process.bounded_head import BoundedHeadProtocol
from pagelet.process.half_closed import HalfClosedProtocol

_CLOSE_SECONDS = 2
"""For answers to leave the kernel's buffers once all requests have ended."""

_KEEP_ALIVE_SECONDS = 75
"""Of an idle connection, longer than clients and load balancers keep theirs (httpx 5 s, most cloud
load balancers 60 s): whoever closes first cannot lose a request that the other has just sent."""


class HTTPServer(uvicorn.Server):
    """Uvicorn without its own signal handlers, which would stop accepting at the first signal:
    while the server drains, probes must still be answered and new requests refused in words."""

    def __init__(self, app: Any, protocol: type[BoundedHeadProtocol] = HalfClosedProtocol) -> None:
        self.listening = asyncio.Event()
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=protocol,
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Sets `listening` once requests are answered."""
        await super().startup(sockets)
        if self.started:
            self.listening.set()

    def stop_accepting(self) -> None:
        """Leaves new connections to other processes that listen on the same socket: those that the
        kernel has queued go to them, too. The open ones stay."""
        for server in self.servers:
            server.close()

    def close_idle(self) -> None:
        """Closes the connections on which no request runs, and each other one after its answer."""
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def cut_off(self) -> None:
        """Cancels all requests that run, which are to end with an error in words."""
        for task in list(self.server_state.tasks):
            task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield
