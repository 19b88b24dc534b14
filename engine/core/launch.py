"""How an engine core process is started: by the supervisor, or by an engine without one."""

import os
from collections.abc import Mapping

import msgspec

from pagelet.process.child import ChildProcess
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
    return ChildProcess(
        ["-m", "pagelet.engine.core.process"],
        launch,
        environment=gpu_environment(launch.options, launch.engine_index, os.environ),
    )


def options_of_engine(options: EngineOptions, engine_index: int) -> EngineOptions:
    """Those of a data-parallel rank: where it meets its ranks on other nodes is its own."""
    parallel = options.parallel
    if parallel.nnodes == 1:
        return options
    port = parallel.master_port + 2 * engine_index
    return msgspec.structs.replace(
        options, parallel=msgspec.structs.replace(parallel, master_port=port)
    )


def gpu_environment(
    options: EngineOptions, engine_index: int, own: Mapping[str, str]
) -> dict[str, str]:
    """What a data-parallel rank's environment needs beside `own`, so that it sees the GPUs that
    are its own and no others: the i-th share of those that this process sees."""
    parallel = options.parallel
    if parallel.data_parallel_size == 1 or options.device == "cpu":
        return {}
    visible = own.get("CUDA_VISIBLE_DEVICES")
    size = parallel.num_ranks // parallel.nnodes
    every = (
        [str(index) for index in range(size * parallel.data_parallel_size)]
        if visible is None
        else visible.split(",")
    )
    share = every[engine_index * size : (engine_index + 1) * size]
    return {"CUDA_VISIBLE_DEVICES": ",".join(share)}
