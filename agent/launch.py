"""How the API process is started by the supervisor."""

import socket

import msgspec

from pagelet.agent.settings import ServeSettings
from pagelet.process.child import ChildProcess
from pagelet.protocol.config import EngineOptions


class ApiLaunch(msgspec.Struct, kw_only=True):
    """The configuration that `python -m pagelet.agent.serve --config-fd N` reads."""

    options: EngineOptions
    settings: ServeSettings
    listen_fd: int
    """The inherited listening socket."""
    socket_paths: list[str]
    """Where the engine cores listen, one a data-parallel rank."""
    heartbeat_paths: list[str]


def launch_api(launch: ApiLaunch, listener: socket.socket) -> ChildProcess:
    """Starts the API process on a listening socket and returns at once; it reports the
    model's name once it has an engine core to serve with."""
    return ChildProcess(["-m", "pagelet.agent.serve"], launch, pass_fds=[listener.fileno()])
