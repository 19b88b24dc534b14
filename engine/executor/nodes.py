"""Ranks on several machines: the head's side. Torch-free.

The head node runs the engine core. Every other node connects to it, gets its ranks' configurations,
starts their processes (`pagelet.engine.executor.node`), and connects each of them to the head. One
address and two ports next to each other are all that the nodes must know: the port given is the
head's, and the collectives meet at the next one.
"""

import contextlib
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec

from pagelet.engine.errors import ConfigurationError, ExecutorFailed
from pagelet.engine.executor.messages import WorkerLaunch
from pagelet.process.frames import recv_frame, send_frame
from pagelet.protocol.config import ParallelOptions

_HELLO_SECONDS = 5.0
_ACCEPT_SECONDS = 0.5
_NAME_SECONDS = 60.0
_NAME_RETRY_SECONDS = 1.0
_log = logging.getLogger("pagelet.engine.nodes")


class NodeHello(msgspec.Struct, array_like=True, tag="node"):
    """The first frame of a node's own connection."""

    node_rank: int
    nnodes: int


class RankHello(msgspec.Struct, array_like=True, tag="rank"):
    """The first frame of the connection of steps and results of one of its ranks."""

    session: str
    rank: int


Hello = NodeHello | RankHello


class NodeLaunch(msgspec.Struct, array_like=True):
    """The head's answer to a node."""

    session: str
    """Random: a rank of an earlier start is not taken for one of this."""
    launches: list[WorkerLaunch]
    """Of the node's ranks. The model's path and the CPUs are for the node to fill in."""


class RankEnd(msgspec.Struct, array_like=True):
    """How a rank's process ended."""

    returncode: int
    failure: str | None
    """The rank's own words about a configuration that cannot work."""


class NodeReport(msgspec.Struct, array_like=True):
    """A node's view of its ranks' processes, twice a second."""

    stopped: list[int]
    """Those that a signal has stopped."""
    ended: dict[int, RankEnd]


def check_nodes(options: ParallelOptions) -> None:
    """Raises `ConfigurationError` if the ranks cannot be divided over the nodes."""
    if options.num_ranks % options.nnodes:
        raise ConfigurationError(
            f"{options.num_ranks} ranks (--tensor-parallel-size x --pipeline-parallel-size) cannot "
            f"be divided over {options.nnodes} nodes: give sizes whose product is a multiple of "
            "--nnodes"
        )
    if options.node_rank >= options.nnodes:
        raise ConfigurationError(
            f"--node-rank {options.node_rank} is not one of {options.nnodes} nodes: give at most "
            f"{options.nnodes - 1}, or a larger --nnodes"
        )


def ranks_of_node(options: ParallelOptions, node_rank: int) -> range:
    """Neighbours in number are on one machine: a stage's ranks, as far as they fit."""
    count = options.num_ranks // options.nnodes
    return range(node_rank * count, (node_rank + 1) * count)


def _listen(address: tuple[str, int]) -> socket.socket:
    """Listens. A machine's name may become known later than the machine is there: a pod's, in a
    cluster's DNS. Raises OSError."""
    until = time.monotonic() + _NAME_SECONDS
    while True:
        try:
            return socket.create_server(address)
        except socket.gaierror as error:
            if time.monotonic() > until:
                raise
            _log.info("%s is not known yet: %s", address[0], error.strerror)
            time.sleep(_NAME_RETRY_SECONDS)


class NodeServer:
    """The other nodes' connections to the head."""

    def __init__(self, options: ParallelOptions) -> None:
        """Listens. Raises `ConfigurationError` if it cannot."""
        self._options = options
        self._session = uuid.uuid4().hex
        self._reports: dict[int, NodeReport] = {}
        self._controls: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        address = (options.master_addr, options.master_port)
        try:
            self._listener = _listen(address)
        except OSError as error:
            raise ConfigurationError(
                f"the head node cannot listen at {address[0]} port {address[1]}: {error}; give an "
                "address of this machine with --master-addr, and a free port with --master-port"
            ) from error
        self._listener.settimeout(_ACCEPT_SECONDS)

    @property
    def rendezvous(self) -> str:
        """Where the collectives meet."""
        return f"tcp://{self._options.master_addr}:{self._options.master_port + 1}"

    def gather(
        self,
        launches: Mapping[int, Sequence[WorkerLaunch]],
        stage: Callable[[str], None],
        check: Callable[[], None],
    ) -> dict[int, socket.socket]:
        """Waits until all ranks of other nodes, whose launches are given by node, have connected;
        returns their sockets. `check` raises if the head's own ranks are gone meanwhile."""
        ranks: dict[int, socket.socket] = {}
        wanted = {launch.place.rank for of_node in launches.values() for launch in of_node}
        while ranks.keys() != wanted:
            check()
            missing = [str(node) for node in launches if node not in self._controls]
            stage(
                f"waiting for node {', '.join(missing)}" if missing else "nodes start their ranks"
            )
            with contextlib.suppress(TimeoutError):
                connection, peer = self._listener.accept()
                try:
                    self._take(connection, launches, ranks)
                except (OSError, EOFError, ValueError) as error:
                    _log.warning("a connection from %s is not a node's: %s", peer[0], error)
                    connection.close()
        return ranks

    def _take(
        self,
        connection: socket.socket,
        launches: Mapping[int, Sequence[WorkerLaunch]],
        ranks: dict[int, socket.socket],
    ) -> None:
        connection.settimeout(_HELLO_SECONDS)
        hello = recv_frame(connection, msgspec.msgpack.Decoder(Hello))
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        match hello:
            case NodeHello(node, nnodes):
                if nnodes != self._options.nnodes or node not in launches:
                    raise ValueError(f"node {node} of {nnodes}, where {self._options.nnodes} are")
                if node in self._controls:
                    raise ExecutorFailed(f"node {node} began anew before all ranks were there")
                send_frame(connection, NodeLaunch(self._session, list(launches[node])))
                self._controls[node] = connection
            case RankHello(session, rank):
                if session != self._session:
                    raise ValueError(f"rank {rank} is of an earlier start")
                ranks[rank] = connection

    def watch(self, on_lost: Callable[[int], None]) -> None:
        """Reads the nodes' reports from now on; `on_lost` is told of a node that is gone."""
        for node, control in self._controls.items():
            thread = threading.Thread(
                target=self._read, args=(node, control, on_lost), name=f"node-{node}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _read(self, node: int, control: socket.socket, on_lost: Callable[[int], None]) -> None:
        decoder = msgspec.msgpack.Decoder(NodeReport)
        try:
            while True:
                self._reports[node] = recv_frame(control, decoder)
        except (OSError, EOFError, ValueError):
            if not self._closed.is_set():
                on_lost(node)

    def is_stopped(self, rank: int) -> bool:
        """Whether a signal has stopped a rank's process, by its node's newest report."""
        return any(rank in report.stopped for report in list(self._reports.values()))

    def end_of(self, rank: int) -> RankEnd | None:
        """How a rank's process ended, if its node has told."""
        ends = (report.ended.get(rank) for report in list(self._reports.values()))
        return next((end for end in ends if end is not None), None)

    def release(self) -> None:
        """Lets the nodes go: they kill their ranks."""
        self._closed.set()
        for control in list(self._controls.values()):
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends all connections."""
        self.release()
        for thread in self._threads:
            thread.join()
        for control in self._controls.values():
            control.close()
        self._listener.close()
