"""Ranks on two nodes, which are two process trees here, that meet at one address."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pagelet.engine.errors import ConfigurationError, ExecutorFailed
from pagelet.engine.executor import nodes
from pagelet.engine.executor.factory import make_executor
from pagelet.engine.executor.node import NodeStart, launch_node
from pagelet.engine.executor.nodes import NodeHello, NodeServer, check_nodes, ranks_of_node
from pagelet.engine.source import ModelFiles
from pagelet.process.child import ChildProcess
from pagelet.process.frames import send_frame
from pagelet.protocol.config import EngineOptions, ParallelOptions
from support.hand_scheduler import HandScheduler
from support.ports import free_ports
from support.processes import wait_for
from support.ranks import LLAMA, make_ranks, ranks_options


@pytest.fixture
def options(tmp_path) -> EngineOptions:
    (tmp_path / "config.json").write_text("{}")  # nothing of it is read: the head tells
    options = ranks_options(1, 2)
    options.model.source = str(tmp_path)
    options.parallel.nnodes, options.parallel.master_port = 2, free_ports()
    return options


@pytest.fixture
def node(options) -> Iterator[ChildProcess]:
    of_node = ranks_options(1, 2)
    of_node.model.source = options.model.source
    of_node.parallel.nnodes, of_node.parallel.master_port = 2, options.parallel.master_port
    of_node.parallel.node_rank = 1
    process = launch_node(NodeStart(options=of_node))
    yield process
    process.kill_group()
    process.wait()
    process.close()


def children_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def make_head(options, stage=lambda text: None):
    files = ModelFiles(Path(options.model.source), "safetensors", "tiny")
    return make_executor(options, files, LLAMA, 128, stage)


def generate(executor) -> list[int]:
    hand = HandScheduler(executor.layout, executor.num_blocks, 8)
    hand.add(0, list(range(60, 81)))
    for _ in range(8):
        hand.take(executor.execute(hand.plan([0])).result(60))
    return hand.finish(0)


def test_two_nodes_generate_what_one_does_also_after_a_rank_was_killed(options, node) -> None:
    # A connection that is no node's does no harm.
    strangers = []

    def stray(_: str) -> None:
        if not strangers:
            address = ("127.0.0.1", options.parallel.master_port)
            strangers.append(socket.create_connection(address))
            send_frame(strangers[0], NodeHello(1, 3))

    head = make_head(options, stray)
    try:
        assert strangers[0].recv(1) == b""
        strangers[0].close()
        assert len(head.worker_pids) == 1
        (remote,) = children_of(node.pid)
        first = generate(head)
        os.kill(remote, signal.SIGKILL)
        wait_for(lambda: fails(head.check))
        with pytest.raises(ExecutorFailed, match=r"rank 1 .*ended with signal SIGKILL"):
            head.check()
    finally:
        head.close()
    wait_for(lambda: not children_of(node.pid))
    again = make_head(options)
    try:
        (remote,) = children_of(node.pid)
        assert generate(again) == first
        os.kill(remote, signal.SIGSTOP)
        wait_for(lambda: fails(again.check))
        with pytest.raises(ExecutorFailed, match=r"rank 1 .*hangs: a signal has stopped its"):
            again.check()
    finally:
        again.close()
    alone = make_ranks(LLAMA, 1)
    try:
        assert generate(alone) == first
    finally:
        alone.close()


def fails(function) -> bool:
    try:
        function()
    except ExecutorFailed:
        return True
    return False


def test_ranks_are_divided_evenly_or_it_is_said_what_would() -> None:
    options = ParallelOptions(tensor_parallel_size=2, pipeline_parallel_size=4, nnodes=2)
    assert [list(ranks_of_node(options, node)) for node in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    check_nodes(options)
    options.nnodes = 3
    with pytest.raises(ConfigurationError, match=r"8 ranks .* multiple of --nnodes"):
        check_nodes(options)
    with pytest.raises(ConfigurationError, match=r"--node-rank 2 .* at most 1"):
        check_nodes(ParallelOptions(tensor_parallel_size=2, nnodes=2, node_rank=2))


def test_an_address_that_is_not_here_is_refused(options) -> None:
    options.parallel.master_addr = "192.0.2.1"
    with pytest.raises(ConfigurationError, match="address of this machine with --master-addr"):
        make_head(options)


def test_a_name_that_becomes_known_late_is_waited_for(options, monkeypatch) -> None:
    """A pod's own name, in a cluster."""
    refused = []
    create_server = socket.create_server

    def create(address):
        if len(refused) < 2:
            refused.append(address)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return create_server(address)

    monkeypatch.setattr(nodes, "_NAME_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(nodes.socket, "create_server", create)
    server = NodeServer(options.parallel)
    server.close()
    assert refused == [("127.0.0.1", options.parallel.master_port)] * 2

    refused.clear()
    monkeypatch.setattr(nodes, "_NAME_SECONDS", -1.0)
    with pytest.raises(ConfigurationError, match=r"cannot listen at 127.0.0.1 port .* not known"):
        NodeServer(options.parallel)
