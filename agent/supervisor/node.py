"""`pagelet serve` on a machine that is not the head: its ranks, until it is told to stop."""

import functools
import logging
import os
import signal
import time
from collections.abc import Sequence

from pagelet.agent.settings import ServeSettings
from pagelet.agent.supervisor.supervisor import StartError
from pagelet.engine.core.launch import gpu_environment, options_of_engine
from pagelet.engine.executor.node import NodeStart, launch_node
from pagelet.process.child import EXIT_CONFIGURATION
from pagelet.process.managed import Managed
from pagelet.process.proc import describe_exit
from pagelet.process.signals import SignalQueue
from pagelet.protocol.config import EngineOptions

_TICK_SECONDS = 0.5
log = logging.getLogger(__name__)


def run_node(options: EngineOptions, settings: ServeSettings) -> int:
    """Runs a process for each data-parallel copy of the model, which starts this node's ranks of it
    whenever the head asks for them. Returns 0 after SIGTERM or SIGINT; requests are the head's to
    drain. Raises `StartError`."""
    nodes = [
        Managed(
            f"node {options.parallel.node_rank} of engine core {index}",
            functools.partial(
                launch_node,
                NodeStart(
                    options=options_of_engine(options, index),
                    log_level=settings.log_level,
                    log_format=settings.log_format,
                ),
                gpu_environment(options, index, os.environ),
            ),
        )
        for index in range(options.parallel.data_parallel_size)
    ]
    with SignalQueue() as signals:
        try:
            for node in nodes:
                node.start()
            while not {signal.SIGTERM, signal.SIGINT} & set(signals.wait(_TICK_SECONDS)):
                _tick(nodes)
        finally:
            for node in nodes:
                node.kill()
            for node in nodes:
                if node.process is not None:
                    node.reap()
    return 0


def _tick(nodes: Sequence[Managed]) -> None:
    for node in nodes:
        node.is_ready()
        if node.process is not None and node.process.poll() is not None:
            returncode, failure = node.reap()
            ended = f"{node.name} ended with {describe_exit(returncode)}"
            if returncode == EXIT_CONFIGURATION:
                raise StartError(failure or ended, EXIT_CONFIGURATION)
            delay = node.record_failure()
            if delay is None:
                raise StartError(f"{ended}, {node.failures} times in a row", 1)
            log.error("%s; starting it again in %g s", ended, delay)
        elif node.restart_at is not None and time.monotonic() >= node.restart_at:
            node.start()
