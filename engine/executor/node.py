"""A node that is not the head, as a process: `python -m pagelet.engine.executor.node`.

It runs its ranks' processes for as long as the head wants them, and then waits for the head again.
After SIGTERM it ends, once the head wants them no more.
"""

import argparse
import contextlib
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from types import FrameType

import msgspec

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.messages import WorkerLaunch
from pagelet.engine.executor.nodes import (
    NodeHello,
    NodeLaunch,
    NodeReport,
    RankEnd,
    RankHello,
    check_nodes,
)
from pagelet.engine.executor.numa import cpus_of_ranks
from pagelet.engine.executor.watch import BEAT_SECONDS, is_stopped
from pagelet.engine.source import ModelFiles, resolve_model
from pagelet.process.child import ChildProcess, ParentLink
from pagelet.process.frames import recv_frame, send_frame
from pagelet.process.logs import configure_logging
from pagelet.protocol.config import EngineOptions, ParallelOptions
from pagelet.protocol.errors import ModelSourceError

_RETRY_SECONDS = 0.5
_log = logging.getLogger("pagelet.engine.node")


class NodeStart(msgspec.Struct, kw_only=True):
    """A node's configuration, read with `ParentLink.accept`."""

    options: EngineOptions
    log_level: str = "info"
    log_format: str = "text"


def launch_node(start: NodeStart, environment: Mapping[str, str] | None = None) -> ChildProcess:
    """Starts a node's process and returns at once; `environment` is added to this process's."""
    return ChildProcess(["-m", "pagelet.engine.executor.node"], start, environment=environment)


class _Ranks:
    """The processes of this node's ranks, from one start of the head's engine to its end."""

    def __init__(self) -> None:
        self._workers: dict[int, ChildProcess] = {}

    def start(self, address: tuple[str, int], launch: NodeLaunch, files: ModelFiles) -> None:
        """Starts them all, each with a connection of its own to the head."""
        allowed = os.sched_getaffinity(0)
        cpus = cpus_of_ranks(len(launch.launches), allowed)
        for index, worker in enumerate(launch.launches):
            worker.model_path, worker.model_format = str(files.path), files.format
            worker.device_index, worker.cpus = index, cpus[index]
            worker.num_threads = max(1, len(allowed) // len(launch.launches))
            with socket.create_connection(address) as steps:
                steps.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                send_frame(steps, RankHello(launch.session, worker.place.rank))
                self._start_worker(worker, steps)

    def _start_worker(self, launch: WorkerLaunch, steps: socket.socket) -> None:
        launch.step_fd = steps.fileno()
        self._workers[launch.place.rank] = ChildProcess(
            ["-m", "pagelet.engine.executor.worker"], launch, pass_fds=[launch.step_fd]
        )

    def report(self) -> NodeReport:
        """How they are."""
        report = NodeReport([], {})
        for rank, worker in self._workers.items():
            if (code := worker.poll()) is not None:
                report.ended[rank] = RankEnd(code, worker.failure)
            elif is_stopped(worker.pid):
                report.stopped.append(rank)
        return report

    def end(self) -> None:
        """Kills what is left."""
        for worker in self._workers.values():
            worker.kill_group()
            worker.wait()
            worker.close()


class Leaving:
    """Whether this node was told to end; a handler of signals sets it."""

    told = False

    def tell(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        self.told = True


def _connect(address: tuple[str, int], leaving: Leaving) -> socket.socket | None:
    """Waits for the head; None if told to leave meanwhile."""
    _log.info("waits for the head node at %s port %d", *address)
    while not leaving.told:
        with contextlib.suppress(OSError):
            return socket.create_connection(address, timeout=_RETRY_SECONDS * 10)
        time.sleep(_RETRY_SECONDS)
    return None


def run_session(parallel: ParallelOptions, files: ModelFiles, leaving: Leaving) -> None:
    """Runs this node's ranks for one start of the head's engine, for which it waits unless it is
    `leaving`."""
    address = (parallel.master_addr, parallel.master_port)
    ranks = _Ranks()
    connection = _connect(address, leaving)
    if connection is None:
        return
    with connection as control:
        control.settimeout(None)
        control.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            send_frame(control, NodeHello(parallel.node_rank, parallel.nnodes))
            launch = recv_frame(control, msgspec.msgpack.Decoder(NodeLaunch))
            _log.info("starts ranks %s", [worker.place.rank for worker in launch.launches])
            ranks.start(address, launch, files)
            # The head says nothing more: what can be read is the connection's end.
            while not select.select([control], [], [], BEAT_SECONDS)[0]:
                send_frame(control, ranks.report())
            _log.warning("the head node has ended its engine; this node's ranks end with it")
        except (OSError, EOFError) as error:
            _log.warning("the connection to the head node broke: %s", error)
        finally:
            ranks.end()
    time.sleep(_RETRY_SECONDS)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-fd", type=int, required=True)
    start, link = ParentLink.accept(parser.parse_args().config_fd, NodeStart)
    parallel = start.options.parallel
    configure_logging(start.log_level, start.log_format, f"node {parallel.node_rank}")
    try:
        check_nodes(parallel)
        files = resolve_model(start.options)
    except (ConfigurationError, ModelSourceError) as error:
        link.fail(str(error))
    leaving = Leaving()
    signal.signal(signal.SIGTERM, leaving.tell)
    link.report_serving()
    with contextlib.suppress(KeyboardInterrupt):
        while not leaving.told:
            run_session(parallel, files, leaving)


if __name__ == "__main__":
    main()
