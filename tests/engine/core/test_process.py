"""The engine core's process loop over its socket: one client, acknowledged outputs, aborts."""

import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from pagelet.engine.core.core import EngineCore
from pagelet.engine.core.heartbeat import HeartbeatReader, HeartbeatWriter
from pagelet.engine.core.process import CoreServer
from pagelet.engine.runner.simulated import SimulatedExecutor
from pagelet.process.frames import recv_frame, send_frame
from pagelet.protocol.config import EngineOptions, ModelOptions
from pagelet.protocol.engine import (
    MOST_UNACKNOWLEDGED,
    AbortRequests,
    Acknowledge,
    EngineCoreOutputs,
    EngineCoreReady,
    EngineCoreRequest,
    FromCore,
)
from pagelet.protocol.sampling import SamplingParams

DECODER = msgspec.msgpack.Decoder(FromCore)


class Running:
    """A core in a thread, and the path to reach it."""

    def __init__(self, folder: str) -> None:
        options = EngineOptions(model=ModelOptions(source="none"))
        self.core = EngineCore(options, SimulatedExecutor(options.simulated, 1000), 4096)
        self.path = f"{folder}/core.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen()
        listener.setblocking(False)
        self._listener = listener
        ready = EngineCoreReady(1, 0, 10, 16, 4096, 0, {})
        heartbeat = HeartbeatWriter(f"{folder}/beat")
        self.heartbeat = HeartbeatReader(f"{folder}/beat")
        self.server = CoreServer(self.core, ready, listener, heartbeat, None)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(60)
        client.connect(self.path)
        assert isinstance(recv_frame(client, DECODER), EngineCoreReady)
        return client

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + 60
        while not eval(condition, {"core": self.core}):
            assert time.monotonic() < deadline, condition
            time.sleep(0.01)

    def wait_until_it_waits(self) -> None:
        """For its client, which has acknowledged nothing."""
        deadline = time.monotonic() + 60
        while (client := self.server._client) is None or (
            client.unacknowledged < MOST_UNACKNOWLEDGED
        ):
            assert time.monotonic() < deadline, "it runs ahead"
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.stopping = True
        self.thread.join(60)
        self._listener.close()
        self.server.close()


@pytest.fixture
def running(tmp_path: object) -> Iterator[Running]:
    core = Running(str(tmp_path))
    yield core
    core.stop()


def request(request_id: int, max_tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id,
        external_id=str(request_id),
        prompt_token_ids=[1, 2, 3],
        params=SamplingParams(max_tokens=max_tokens, seed=0),
    )


def next_tokens(client: socket.socket) -> EngineCoreOutputs:
    """The next outputs that have any, all acknowledged."""
    while True:
        outputs = recv_frame(client, DECODER)
        assert isinstance(outputs, EngineCoreOutputs)
        send_frame(client, Acknowledge(1))
        if outputs.outputs:
            return outputs


def read_until_it_ends(client: socket.socket, received: list[FromCore]) -> None:
    while True:
        received.append(recv_frame(client, DECODER))


def test_outputs_come_in_order_and_the_request_ends(running: Running) -> None:
    with running.connect() as client:
        send_frame(client, request(7, 50))
        tokens = 0
        while True:
            (output,) = next_tokens(client).outputs
            assert output.request_id == 7
            tokens += len(output.new_token_ids)
            if output.finish_reason is not None:
                break
        assert tokens == 50


def test_core_does_not_run_ahead_of_its_client(running: Running) -> None:
    with running.connect() as client:
        send_frame(client, request(0, 2000))
        running.wait_until_it_waits()
        received: list[FromCore] = []
        client.settimeout(1.5)
        with pytest.raises(TimeoutError):
            read_until_it_ends(client, received)
        assert 1 <= len(received) <= 4
        client.settimeout(60)
        send_frame(client, Acknowledge(4))
        assert next_tokens(client).outputs, "it goes on when the client has caught up"


def test_a_core_that_waits_for_its_client_does_not_look_hung(running: Running) -> None:
    with running.connect() as client:
        send_frame(client, request(0, 2000))
        running.wait_until_it_waits()
        first = running.heartbeat.read()
        assert first is not None
        assert first.has_work
        deadline = time.monotonic() + 60
        while (beat := running.heartbeat.read()) is None or beat.step_began == first.step_began:
            assert time.monotonic() < deadline, "the beat stood still"
            time.sleep(0.01)
        assert beat.step == first.step, "it waited all the while"


def test_new_client_takes_the_place_of_the_old_one(running: Running) -> None:
    first = running.connect()
    send_frame(first, request(0, 3000))
    next_tokens(first)
    with running.connect() as second:
        running.wait("core.num_unfinished == 0")
        send_frame(second, request(1, 1))
        assert next_tokens(second).outputs[0].request_id == 1
    first.close()


def test_requests_of_a_client_that_is_gone_are_aborted(running: Running) -> None:
    client = running.connect()
    send_frame(client, request(0, 3000))
    next_tokens(client)
    client.close()
    running.wait("core.num_unfinished == 0 and core.kv.pool.usage == 0")


def test_abort_frees_the_blocks_and_sends_nothing_more(running: Running) -> None:
    with running.connect() as client:
        send_frame(client, request(0, 3000))
        next_tokens(client)
        send_frame(client, AbortRequests([0]))
        send_frame(client, request(1, 1))
        while next_tokens(client).outputs[0].request_id == 0:
            pass
        assert running.core.kv.pool.usage == 0


def test_bytes_that_are_no_message_end_the_connection(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"\x03\x00\x00\x00\xc1\xc1\xc1")
        with pytest.raises((EOFError, ConnectionError)):
            read_until_it_ends(client, [])
    with running.connect() as client:
        send_frame(client, request(0, 1))
        assert next_tokens(client).outputs[0].finish_reason == "length"
