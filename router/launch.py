"""How a worker of a router is started by its supervisor."""

import signal
import socket
from typing import Annotated, Final, Literal

import msgspec

from pagelet.process.child import ChildProcess
from pagelet.protocol.router import RouterConfig

DRAIN_SIGNAL: Final = signal.SIGUSR2
"""From the supervisor to all workers when the router as a whole drains. SIGTERM to one worker is
that one's own end: the others go on."""


class RouterSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The server's side of `pagelet router`."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` or `::` for all."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    """TCP port; 0 takes a free one."""
    fd: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """An inherited listening socket, in place of both."""
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    """Processes that answer on the port."""
    config_file: str | None = None
    """The configuration, if it came from a file, which is read again when it changes."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    """json: one object a line, for log collectors."""


class WorkerLaunch(msgspec.Struct, kw_only=True):
    """The configuration that `python -m pagelet.router.serve --config-fd N` reads."""

    config: RouterConfig
    settings: RouterSettings
    worker: int
    """Its number, from 0."""
    siblings: str
    """By which the workers of one router find one another."""
    listen_fd: int
    """The inherited listening socket."""
    counters_fd: int
    """The inherited table of what tenants use."""


def launch_worker(launch: WorkerLaunch, listener: socket.socket) -> ChildProcess:
    """Starts a worker and returns at once; it reports when it answers requests."""
    fds = [listener.fileno(), launch.counters_fd]
    return ChildProcess(["-m", "pagelet.router.serve"], launch, pass_fds=fds)
