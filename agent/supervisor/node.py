"""`pagelet serve` on a machine that is not the head: its ranks, until it is told to stop."""

import functools
import logging
import os
import signal
import time
from collections.abc import Sequence

from pagelet.agent.settings import ServeSettings
from pagelet.agent.supervisor.node_probes import NodeProbes
from pagelet.agent.supervisor.supervisor import StartError
from pagelet.engine.core.launch import gpu_environment, options_of_engine
from pagelet.engine.executor.node import NodeStart, launch_node
from pagelet.process.backoff import starting_again
from pagelet.process.listener import bind, url
from pagelet.process.managed import Managed
from pagelet.process.proc import describe_exit
from pagelet.process.signals import CUT_OFF, SignalQueue
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.exit_codes import EXIT_CONFIGURATION

_TICK_SECONDS = 0.5
_STOP = {signal.SIGTERM, signal.SIGINT, CUT_OFF}
log = logging.getLogger(__name__)


def run_node(options: EngineOptions, settings: ServeSettings) -> int:
    """Runs a process for each data-parallel copy of the model, which starts this node's ranks of it
    whenever the head asks for them. Requests are the head's to answer and to drain: after SIGTERM
    or SIGINT its streams still have this node's ranks until it has ended its engine, for at most
    `settings.drain_timeout` seconds or until a second signal. Returns 0. Raises `StartError`,
    `CannotStart` and `ListenError`."""
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
    listener = bind(settings.host, settings.port)
    probes = NodeProbes(
        listener,
        lambda: all(node.ready_since is not None for node in nodes),
        options.parallel.node_rank,
        options.parallel.master_addr,
    )
    log.info("answers probes at %s", url(listener).replace("/v1", "/ready"))
    with SignalQueue() as signals, probes:
        try:
            for node in nodes:
                node.start()
            while not (received := _STOP & set(signals.wait(_TICK_SECONDS))):
                _tick(nodes)
            if CUT_OFF not in received:
                _let_head_end(nodes, signals, settings.drain_timeout)
        finally:
            for node in nodes:
                node.kill()
            for node in nodes:
                if node.process is not None:
                    node.reap()
    return 0


def _let_head_end(nodes: Sequence[Managed], signals: SignalQueue, seconds: float) -> None:
    for node in nodes:
        node.terminate()
    until = time.monotonic() + seconds
    while any(node.process is not None and node.process.poll() is None for node in nodes):
        left = until - time.monotonic()
        if left <= 0 or _STOP & set(signals.wait(min(left, _TICK_SECONDS))):
            return


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
            log.error("%s; %s", ended, starting_again(delay, node.failures))
        elif node.restart_at is not None and time.monotonic() >= node.restart_at:
            node.start()
