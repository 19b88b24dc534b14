"""KV events on the wire, as a router would follow them: live, across a gap, and by replay."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from pagelet.engine.core import kv_publisher
from pagelet.engine.core.kv_publisher import KVEventPublisher, offset_endpoint
from pagelet.engine.errors import ConfigurationError
from pagelet.protocol.config import KVEventsOptions
from pagelet.protocol.kv_events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    decode_batch,
)

STORED = BlockStored(
    block_hashes=[b"\1" * 32], parent_block_hash=None, token_ids=list(range(16)), block_size=16
)
LAST = BlockRemoved(block_hashes=[b"\xff" * 32])
Numbered = tuple[int, KVEventBatch]


Connect = Callable[[int, str | None], "zmq.Socket[bytes]"]


@pytest.fixture
def connect() -> Iterator[Connect]:
    context, sockets = zmq.Context(), []

    def connect(kind: int, endpoint: str | None) -> "zmq.Socket[bytes]":
        assert endpoint is not None
        sock = context.socket(kind)
        sockets.append(sock)
        sock.rcvtimeo = 30_000
        sock.connect(endpoint)
        if kind == zmq.SUB:
            sock.subscribe(b"")
        return sock

    yield connect
    for sock in sockets:
        sock.close(linger=0)
    context.term()


@pytest.fixture
def options(tmp_path: Path) -> KVEventsOptions:
    return KVEventsOptions(
        endpoint=f"ipc://{tmp_path}/pub", replay_endpoint=f"ipc://{tmp_path}/replay"
    )


@pytest.fixture
def publisher(options: KVEventsOptions) -> Iterator[KVEventPublisher]:
    publisher = KVEventPublisher(options, data_parallel_rank=0)
    yield publisher
    publisher.close()


def receive(sub: "zmq.Socket[bytes]") -> tuple[bytes, int, KVEventBatch]:
    topic, number, payload = sub.recv_multipart()
    assert len(number) == 8
    return topic, int.from_bytes(number, "big"), decode_batch(payload)


def publish_until_subscribed(publisher: KVEventPublisher, sub: "zmq.Socket[bytes]") -> int:
    """A subscription takes a moment: the number of the last batch that was published for it."""
    while not sub.poll(50):
        publisher.publish([AllBlocksCleared()])
    publisher.publish([LAST])
    while True:
        _, number, batch = receive(sub)
        if batch.events == [LAST]:
            return number


def replay(sock: "zmq.Socket[bytes]", first: int, envelope: list[bytes]) -> list[Numbered]:
    sock.send_multipart([*envelope, first.to_bytes(8, "big")])
    batches: list[Numbered] = []
    while True:
        *back, number, payload = sock.recv_multipart()
        assert back == envelope
        if number == END_OF_REPLAY:
            assert payload == b""
            return batches
        batches.append((int.from_bytes(number, "big"), decode_batch(payload)))


def test_events_arrive_in_order_with_consecutive_numbers(
    publisher: KVEventPublisher,
    options: KVEventsOptions,
    connect: Connect,
) -> None:
    sub = connect(zmq.SUB, options.endpoint)
    last = publish_until_subscribed(publisher, sub)
    before = time.time()
    publisher.publish([STORED, BlockRemoved(block_hashes=[b"\2" * 32])])
    publisher.publish([AllBlocksCleared()])
    topic, number, batch = receive(sub)
    assert topic == b"", "vLLM's default, which routers subscribe to"
    assert number == last + 1
    assert batch.events == [STORED, BlockRemoved(block_hashes=[b"\2" * 32])]
    assert batch.data_parallel_rank == 0
    assert before <= batch.ts <= time.time()
    assert receive(sub)[1] == last + 2


def test_events_are_maps_with_what_vllm_always_sends(
    publisher: KVEventPublisher,
    options: KVEventsOptions,
    connect: Connect,
) -> None:
    dealer = connect(zmq.DEALER, options.replay_endpoint)
    publisher.publish([STORED])
    payload = b""
    while not payload:
        dealer.send((0).to_bytes(8, "big"))
        while (parts := dealer.recv_multipart())[0] != END_OF_REPLAY:
            payload = parts[1]
    timestamp, events, rank = msgspec.msgpack.decode(payload)
    assert isinstance(timestamp, float)
    assert rank == 0
    assert events == [
        {
            "type": "BlockStored",
            "block_hashes": [b"\1" * 32],
            "parent_block_hash": None,
            "token_ids": list(range(16)),
            "block_size": 16,
            "lora_id": None,
            "medium": None,
            "lora_name": None,
        }
    ], "vllm-router refuses an event without the last three"


@pytest.mark.parametrize("envelope", [[], [b""]], ids=["dealer", "req"])
def test_a_subscriber_that_missed_some_gets_them_replayed(
    publisher: KVEventPublisher,
    options: KVEventsOptions,
    connect: Connect,
    envelope: list[bytes],
) -> None:
    sub = connect(zmq.SUB, options.endpoint)
    last = publish_until_subscribed(publisher, sub)
    sub.close()
    for index in range(5):
        publisher.publish([BlockRemoved(block_hashes=[bytes([index]) * 32])])
    dealer = connect(zmq.DEALER, options.replay_endpoint)
    while len(replay(dealer, last + 1, envelope)) < 5:
        time.sleep(0.01)  # until all of them are out
    sub = connect(zmq.SUB, options.endpoint)
    newest = publish_until_subscribed(publisher, sub)
    assert newest > last + 5  # the gap
    batches = replay(dealer, last + 1, envelope)
    assert [number for number, _ in batches] == list(range(last + 1, newest + 1))
    missed = [batch.events for _, batch in batches[:5]]
    assert missed == [[BlockRemoved(block_hashes=[bytes([i]) * 32])] for i in range(5)]
    assert replay(dealer, newest + 1, envelope) == []


def test_a_replay_holds_the_newest_batches_only(
    options: KVEventsOptions,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_publisher, "REPLAY_BATCHES", 3)
    publisher = KVEventPublisher(options)
    for _ in range(10):
        publisher.publish([AllBlocksCleared()])
    dealer = connect(zmq.DEALER, options.replay_endpoint)
    while [number for number, _ in replay(dealer, 0, [])] != [7, 8, 9]:
        time.sleep(0.01)
    publisher.close()


def test_a_malformed_replay_request_harms_nothing(
    publisher: KVEventPublisher,
    options: KVEventsOptions,
    connect: Connect,
) -> None:
    dealer = connect(zmq.DEALER, options.replay_endpoint)
    dealer.send(b"what?")
    assert replay(dealer, 0, []) == []


def test_closing_sends_what_is_queued_and_frees_the_endpoint(
    options: KVEventsOptions, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_publisher, "_LINGER_MS", 60_000)  # the machine may be busy
    publisher = KVEventPublisher(options)
    sub = connect(zmq.SUB, options.endpoint)
    last = publish_until_subscribed(publisher, sub)
    for _ in range(200):
        publisher.publish([STORED])
    publisher.close()
    assert [receive(sub)[1] for _ in range(200)] == list(range(last + 1, last + 201))
    KVEventPublisher(options).close()


def test_a_port_in_use_is_a_configuration_error() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"--kv-events-endpoint tcp://.*:{port}: Addr"):
            KVEventPublisher(KVEventsOptions(endpoint=f"tcp://*:{port}"))


def test_a_malformed_endpoint_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="give one such as"):
        KVEventPublisher(KVEventsOptions(endpoint="*:5557"))


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 3, "tcp://*:5560"),
        ("tcp://[::]:5557", 1, "tcp://[::]:5558"),
        ("tcp://*:0", 1, "tcp://*:0"),
        ("ipc:///run/kv", 2, "ipc:///run/kv_dp2"),
    ],
)
def test_each_rank_has_an_endpoint_of_its_own(endpoint: str, rank: int, expected: str) -> None:
    assert offset_endpoint(endpoint, rank) == expected


@pytest.mark.parametrize("endpoint", ["tcp://*:0", "tcp://127.0.0.1:0", "ipc://{folder}/events"])
@pytest.mark.parametrize("rank", [0, 1])
def test_subscribers_are_told_where_the_sockets_are_bound(
    tmp_path: Path, connect: Connect, endpoint: str, rank: int
) -> None:
    endpoint = endpoint.format(folder=tmp_path)
    replay_endpoint = f"{endpoint}-replay" if endpoint.startswith("ipc") else endpoint
    publisher = KVEventPublisher(
        KVEventsOptions(endpoint=endpoint, replay_endpoint=replay_endpoint), rank
    )
    assert publisher.sockets is not None
    assert publisher.sockets.replay_endpoint is not None
    sub = connect(zmq.SUB, publisher.sockets.endpoint.replace("0.0.0.0", "127.0.0.1"))
    publish_until_subscribed(publisher, sub)
    publisher.publish([STORED])
    topic, number, _ = receive(sub)
    assert topic.decode() == publisher.sockets.topic
    dealer = connect(zmq.DEALER, publisher.sockets.replay_endpoint.replace("0.0.0.0", "127.0.0.1"))
    assert [batch.events for _, batch in replay(dealer, number, [])] == [[STORED]]
    publisher.close()


def test_events_for_a_socket_of_someone_elses_are_not_offered_to_subscribers() -> None:
    context = zmq.Context()
    collector = context.socket(zmq.SUB)
    port = collector.bind_to_random_port("tcp://127.0.0.1")
    publisher = KVEventPublisher(KVEventsOptions(endpoint=f"tcp://127.0.0.1:{port}"))
    assert publisher.sockets is None
    publisher.close()
    collector.close(linger=0)
    context.term()


def test_a_rank_needs_a_port_to_count_from() -> None:
    with pytest.raises(ConfigurationError, match="give a port"):
        offset_endpoint("tcp://*", 1)
