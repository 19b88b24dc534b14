"""How an engine core process is started: by the supervisor, or by an engine without one."""

import msgspec

from pagelet.engine.child import ChildProcess
from pagelet.protocol.config import EngineOptions


class CoreLaunch(msgspec.Struct, kw_only=True):
    """The configuration that `python -m pagelet.engine.core.process --config-fd N` reads with
    `ParentLink.accept`."""

    options: EngineOptions
    engine_index: int
    """The core's data-parallel rank."""
    socket_path: str
    """Where it listens for clients."""
    heartbeat_path: str
    """See `pagelet.engine.core.heartbeat`."""
    log_level: str = "info"
    log_format: str = "text"


def launch_core(launch: CoreLaunch) -> ChildProcess:
    """Starts an engine core and returns at once; it tells its progress in the heartbeat file."""
    return ChildProcess(["-m", "pagelet.engine.core.process"], launch)
