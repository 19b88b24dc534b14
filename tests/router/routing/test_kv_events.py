"""Following real publishers: from the beginning, across gaps, restarts and floods."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import zmq.asyncio

from pagelet.engine.core import kv_publisher
from pagelet.engine.core.kv_publisher import KVEventPublisher
from pagelet.protocol.config import KVEventsOptions
from pagelet.protocol.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from pagelet.protocol.replica import KVEventsSource
from pagelet.router.routing.kv_events import KVEventsFollower, reachable

BLOCK_SIZE = 4


class Recorder:
    """The set of blocks that events say a replica holds."""

    def __init__(self) -> None:
        self.blocks: set[bytes | int] = set()
        self.resets = 0
        self.ranks: set[int | None] = set()

    def apply_events(self, replica_id: str, batch: KVEventBatch) -> None:
        assert replica_id == "one"
        self.ranks.add(batch.data_parallel_rank)
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.blocks.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.blocks.difference_update(event.block_hashes)
            else:
                self.blocks.clear()

    def reset(self, replica_id: str) -> None:
        self.blocks.clear()
        self.resets += 1


class Engine:
    """A publisher, and what its cache would hold."""

    def __init__(self, directory: Path, *, replay: bool = True) -> None:
        self.options = KVEventsOptions(
            endpoint=f"ipc://{directory}/pub",
            replay_endpoint=f"ipc://{directory}/replay" if replay else None,
            topic="kv@test",
        )
        self.blocks: set[bytes | int] = set()
        self.publisher = KVEventPublisher(self.options)

    @property
    def source(self) -> KVEventsSource:
        assert self.options.endpoint is not None
        replay = self.options.replay_endpoint
        return KVEventsSource(
            endpoints=[self.options.endpoint],
            replay_endpoints=[] if replay is None else [replay],
            topic="kv@test",
        )

    def store(self, number: int) -> None:
        block = number.to_bytes(32, "big")
        self.blocks.add(block)
        self.publisher.publish(
            [BlockStored(block_hashes=[block], parent_block_hash=None, token_ids=[1], block_size=1)]
        )

    def remove(self, number: int) -> None:
        block = number.to_bytes(32, "big")
        self.blocks.discard(block)
        self.publisher.publish([BlockRemoved(block_hashes=[block])])

    def restart(self) -> None:
        self.publisher.close()
        self.blocks.clear()
        self.publisher = KVEventPublisher(self.options)


@asynccontextmanager
async def following(engine: Engine, sink: Recorder) -> AsyncIterator[KVEventsFollower]:
    context = zmq.asyncio.Context()
    follower = KVEventsFollower("one", engine.source, "localhost", sink, context, asyncio.Lock())
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(linger=0)
        engine.publisher.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def subscribed(engine: Engine, sink: Recorder, follower: KVEventsFollower) -> None:
    """Publishes until something arrives by itself: from then on all that is published does."""
    number = 1 << 40
    while follower.counts.batches == follower.counts.replayed:
        engine.store(number)
        number += 1
        await asyncio.sleep(0.05)
    await in_step(engine, sink)


async def in_step(engine: Engine, sink: Recorder) -> None:
    await until(lambda: sink.blocks == engine.blocks, "the index never became what the cache is")


async def test_what_was_cached_before_is_replayed(tmp_path: Path) -> None:
    engine, sink = Engine(tmp_path), Recorder()
    for number in range(50):
        engine.store(number)
    for number in range(0, 50, 3):
        engine.remove(number)
    async with following(engine, sink) as follower:
        await in_step(engine, sink)
        assert follower.counts.replayed == 67
        assert sink.ranks == {0}


async def test_what_no_engine_publishes_is_passed_over(tmp_path: Path) -> None:
    """The next good batches count, of the rank whose socket it is."""
    engine, sink = Engine(tmp_path), Recorder()
    forger = zmq.Context()
    pub = forger.socket(zmq.PUB)
    endpoint = f"ipc://{tmp_path}/forged"
    pub.bind(endpoint)
    engine.options = msgspec.structs.replace(
        engine.options, endpoint=endpoint, replay_endpoint=None
    )

    def encode(*events: object, rank: object = 0) -> bytes:
        return msgspec.msgpack.encode([0.0, list(events), rank])

    number = 0

    def publish(payload: bytes, sequence: bytes | None = None) -> None:
        nonlocal number
        if sequence is None:
            number += 1
        told = number.to_bytes(8, "big") if sequence is None else sequence
        pub.send_multipart([b"kv@test", told, payload])

    stored = {"type": "BlockStored", "parent_block_hash": None, "token_ids": [1], "block_size": 1}
    nested = b"\x93\x00" + b"\x91" * 10_000
    good = [bytes([each]) * 32 for each in range(9)]
    async with following(engine, sink) as follower:
        while not sink.blocks:
            publish(encode(stored | {"block_hashes": [good[0]]}))
            await asyncio.sleep(0.02)
        for each, payload in enumerate(
            (encode([]), encode([[1]]), encode(["Unknown"]), encode(3), nested, b"", b"\xc1"), 1
        ):
            publish(payload)
            publish(b"", sequence=b"short")
            publish(b"", sequence=b"\x7f" * 100)
            forged = {"block_hashes": [good[each]]}
            publish(encode(stored | forged, rank=10**9))
            await until(lambda each=each: good[each] in sink.blocks, "following ended")
        assert sink.ranks == {0}
        assert follower.counts.undecodable == 7 * 3
    forger.destroy(linger=0)


async def test_events_follow_live(tmp_path: Path) -> None:
    engine, sink = Engine(tmp_path), Recorder()
    async with following(engine, sink) as follower:
        await subscribed(engine, sink, follower)
        for number in range(100):
            engine.store(number)
        engine.remove(7)
        await in_step(engine, sink)
        engine.publisher.publish([AllBlocksCleared()])
        engine.blocks.clear()
        await in_step(engine, sink)


async def test_dropped_messages_are_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sink = Engine(tmp_path), Recorder()
    async with following(engine, sink) as follower:
        await subscribed(engine, sink, follower)
        resets = sink.resets
        _drop(engine.publisher, lambda number: number % 3 == 0, monkeypatch)
        for number in range(60):
            engine.store(number)
            engine.remove(number // 2)
        await until(lambda: engine.blocks - sink.blocks <= {max(engine.blocks)}, "no healing")
        monkeypatch.undo()
        engine.store(1000)
        await in_step(engine, sink)
        assert follower.counts.gaps > 0
        assert follower.counts.replayed > 0
        assert sink.resets == resets, "nothing was beyond the replay"


def _drop(
    publisher: KVEventPublisher,
    dropped: Callable[[int], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> list[bytes]:
    """Loses messages on their way to subscribers: the payloads of those that are lost."""
    real, lost = publisher._pub, list[bytes]()

    class Lossy:
        def send_multipart(self, parts: tuple[bytes, bytes, bytes]) -> None:
            if dropped(int.from_bytes(parts[1], "big")):
                lost.append(parts[2])
            else:
                real.send_multipart(parts)

    monkeypatch.setattr(publisher, "_pub", Lossy())
    return lost


async def until_lost(number: int, lost: list[bytes]) -> None:
    """Until the publisher's thread has sent a block's event, to nobody."""
    block = number.to_bytes(32, "big")
    await until(lambda: any(block in payload for payload in lost), "it was never sent")


async def test_a_gap_beyond_the_replay_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_publisher, "REPLAY_BATCHES", 100)
    engine, sink = Engine(tmp_path), Recorder()
    async with following(engine, sink) as follower:
        await subscribed(engine, sink, follower)
        lost = _drop(engine.publisher, lambda _: True, monkeypatch)
        for number in range(120):
            engine.store(number)
        await until_lost(119, lost)
        monkeypatch.undo()
        engine.store(120)
        last = {number.to_bytes(32, "big") for number in range(21, 121)}
        await until(lambda: sink.blocks == last, "not what the replay still has")
        assert follower.counts.resets == 1


async def test_without_a_replay_a_gap_drops_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sink = Engine(tmp_path, replay=False), Recorder()
    async with following(engine, sink):
        while not sink.blocks:
            engine.store(0)
            await asyncio.sleep(0.05)
        lost = _drop(engine.publisher, lambda _: True, monkeypatch)
        engine.store(1)
        await until_lost(1, lost)
        monkeypatch.undo()
        engine.store(2)
        await until(lambda: sink.blocks == {(2).to_bytes(32, "big")}, "old blocks were kept")


async def test_a_restarted_engine_starts_anew(tmp_path: Path) -> None:
    engine, sink = Engine(tmp_path), Recorder()
    async with following(engine, sink) as follower:
        await subscribed(engine, sink, follower)
        for number in range(10):
            engine.store(number)
        await in_step(engine, sink)
        engine.restart()
        number = 100
        while sink.blocks != engine.blocks:  # the subscription takes a moment to come back
            engine.store(number)
            number += 1
            await asyncio.sleep(0.1)
            assert number < 600, "the old engine's blocks are still there"
        assert sink.resets


async def test_an_unreadable_batch_drops_what_was_known_and_the_next_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sink = Engine(tmp_path), Recorder()
    async with following(engine, sink) as follower:
        await subscribed(engine, sink, follower)
        engine.publisher.publish([{"type": "Unknown"}])  # type: ignore[list-item]
        await until(lambda: not sink.blocks, "what the batch said is not known")
        engine.blocks.clear()
        engine.store(1)
        await in_step(engine, sink)
        assert follower.counts.undecodable == 1


async def test_a_flood_leaves_the_loop_to_others(tmp_path: Path) -> None:
    """While a long replay is worked off, another task gets its turns."""
    engine, sink = Engine(tmp_path), Recorder()
    for number in range(5000):
        engine.store(number)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while len(sink.blocks) < 5000:
            turns += bool(sink.blocks)
            await asyncio.sleep(0)

    async with following(engine, sink):
        await asyncio.wait_for(other(), 60)
    assert turns > 10


@pytest.mark.parametrize(
    ("endpoint", "host", "expected"),
    [
        ("tcp://*:5557", "10.0.0.7", "tcp://10.0.0.7:5557"),
        ("tcp://0.0.0.0:5557", "a.b", "tcp://a.b:5557"),
        ("tcp://[::]:5557", "fd00::1", "tcp://[fd00::1]:5557"),
        ("tcp://127.0.0.1:5557", "10.0.0.7", "tcp://127.0.0.1:5557"),
        ("ipc:///run/x", "10.0.0.7", "ipc:///run/x"),
    ],
)
def test_an_endpoint_as_bound_becomes_one_to_connect_to(
    endpoint: str, host: str, expected: str
) -> None:
    assert reachable(endpoint, host) == expected


def test_events_of_both_kinds_of_hashes_are_read() -> None:
    batch = KVEventBatch(
        1.0,
        [BlockRemoved(block_hashes=[b"\1" * 32]), BlockRemoved(block_hashes=[5])],
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=KVEventBatch) == batch
