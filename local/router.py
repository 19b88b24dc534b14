"""The router process: `pagelet router` on the port that clients know."""

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from pagelet.local.log_files import RotatingLog
from pagelet.local.rollout import Phase
from pagelet.local.server import Server
from pagelet.local.status import ServerStatus
from pagelet.process.atomic import write_atomically
from pagelet.protocol.router import RouterConfig

_STARTUP_SECONDS = 120.0


class Router(Server):
    """One router for all pools."""

    ready_path = "/health"

    def __init__(
        self,
        config: RouterConfig,
        config_path: Path,
        listener: socket.socket,
        output: RotatingLog,
        on_change: Callable[[], None],
    ) -> None:
        """`listener` is the endpoint, on which connections wait while the process starts again; the
        configuration is written to `config_path`."""
        self._config_path = config_path
        self._written = b""
        self.configure(config)
        fd = listener.fileno()
        super().__init__(
            "router",
            ["router", "--config", str(config_path), "--fd", str(fd)],
            listener.getsockname()[1],
            output,
            environment={},
            pass_fds=[fd],
            startup_seconds=_STARTUP_SECONDS,
            drain_seconds=config.proxy.drain_timeout,
            on_change=on_change,
        )

    def configure(self, config: RouterConfig) -> None:
        """Writes another configuration, which the process takes over itself. Raises `OSError`."""
        content = msgspec.json.format(msgspec.json.encode(config), indent=2)
        if content != self._written:
            write_atomically(self._config_path, content)
            self._written = content

    def is_ready(self, status: int) -> bool:
        """It serves as soon as it answers: without replicas it holds requests."""
        return status < 600

    def status(self) -> ServerStatus:
        """As it is shown."""
        return ServerStatus(
            id=self.name,
            phase=self.phase,
            pid=self.pid,
            port=self.port,
            restarts=self.restarts,
            reason="" if self.phase is Phase.READY else self.reason,
        )
