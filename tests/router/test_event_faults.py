"""What a router knows of caches, where events are lost or lie, and after it was killed itself: no
request fails, and what is predicted becomes what is found."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
import zmq

from pagelet.protocol.block_hash import hash_blocks
from pagelet.protocol.kv_events import (
    BlockRemoved,
    BlockStored,
    KVEvent,
    KVEventBatch,
    decode_batch,
)
from support.fleet import MODEL, in_order, metrics, replica, router
from support.processes import wait_for
from support.scripted_replica import ScriptedReplica, scripted, whole

BLOCK = 16
Alter = Callable[[list[KVEvent]], list[KVEvent] | None]


def prompt(number: int) -> list[int]:
    """Ten blocks and a bit of tokens, unlike any other number's."""
    return [1000 + number, *range(2000, 2000 + 10 * BLOCK + 3)]


class Tap:
    """Stands between a replica's events and whoever subscribes: what passes is what `alter` makes
    of a batch, and nothing for None. The replay is left as it is."""

    def __init__(self, path: Path) -> None:
        self.alter: Alter = lambda events: events
        self._ended = threading.Event()
        self._context = zmq.Context()
        moved = path.with_suffix(".real")
        path.rename(moved)
        self._from = self._context.socket(zmq.SUB)
        self._from.subscribe(b"")
        self._from.connect(f"ipc://{moved}")
        self._to = self._context.socket(zmq.PUB)
        self._to.bind(f"ipc://{path}")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            if not self._from.poll(50):
                continue
            topic, number, payload = self._from.recv_multipart()
            batch = decode_batch(payload)
            events = self.alter(batch.events)
            if events is not None:
                altered = KVEventBatch(batch.ts, events, batch.data_parallel_rank)
                self._to.send_multipart([topic, number, msgspec.msgpack.encode(altered)])

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._context.destroy(linger=0)


class Fleet:
    """Two replicas, the events of the first one tapped, and a router with the default policy."""

    def __init__(self, folder: Path) -> None:
        self.replicas = {
            name: replica(
                folder / f"{name}.log",
                *("--kv-events-endpoint", f"ipc://{folder}/{name}"),
                *("--kv-events-replay-endpoint", f"ipc://{folder}/{name}-replay"),
                # So that what is cached weighs more than a step that came late.
                *("--simulated-token-seconds", "0.0005"),
            )
            for name in ("a", "b")
        }
        self.fresh = itertools.count(1000)
        self.names = {each.url: name for name, each in self.replicas.items()}
        pool = {"replicas": list(self.names)}
        self.router = router(
            folder / "router.log",
            {"models": [{"pools": [pool]}], "proxy": {"health_interval": 0.25}},
        )
        in_order(list(self.replicas.values()))
        self.tap = Tap(folder / "a")
        self.router.start()

    def wait_ready(self) -> None:
        """Until the router follows both replicas' events."""
        self.router.wait_ready()
        wait_for(lambda: len(self.ask(0)[0]) == 2)
        for name in ("a", "b", "a", "b"):  # the first may come by a replay
            before = self.blocks()
            self.hold(name, next(self.fresh))
            wait_for(lambda before=before: self.blocks() >= before + 10)

    def blocks(self) -> float:
        """In the router's index."""
        found = metrics(self.router)
        return sum(v for k, v in found.items() if k.startswith("pagelet_router_index_blocks"))

    def hold(self, name: str, number: int) -> None:
        """Has a replica cache a prompt, past the router."""
        post(self.replicas[name].url, number).raise_for_status()

    def ask(self, number: int) -> tuple[dict[str, int], str, int]:
        """What was predicted of each replica, which one answered, and what its cache held."""
        response = post(self.router.url, number)
        assert response.status_code == 200, response.text
        found = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        request_id = response.headers["x-request-id"]
        told = httpx.get(f"{self.router.url}/v1/explain/{request_id}", timeout=60).json()
        candidates = told["attempts"][-1]["candidates"]
        predicted = {self.names[each["replica_id"]]: each["hit_tokens"] for each in candidates}
        return predicted, self.names[response.headers["x-pagelet-replica"]], found

    def knows(self, number: int, name: str) -> bool:
        """Whether the router takes a replica for one that holds the whole prompt, as it does."""
        predicted, chosen, found = self.ask(number)
        return predicted[name] == 10 * BLOCK and (chosen != name or found == 10 * BLOCK)

    def close(self) -> None:
        self.tap.close()
        for command in (*self.replicas.values(), self.router):
            command.close()


def post(url: str, number: int) -> httpx.Response:
    body = {"model": MODEL, "prompt": prompt(number), "max_tokens": 2, "seed": 1}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.hold("a", 0)
        fleet.hold("b", 0)
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Fleet:
    """With a tap that alters nothing, and a router that has begun anew."""
    shared_fleet.tap.alter = lambda events: events
    kill_worker(shared_fleet)
    shared_fleet.wait_ready()
    return shared_fleet


def kill_worker(fleet: Fleet) -> None:
    """The process that answers; its supervisor keeps the port and starts another one."""
    wait_for(lambda: fleet.router.processes("pagelet.router.serve"))
    for pid in fleet.router.processes("pagelet.router.serve"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_router_that_is_killed_fails_no_new_request_and_knows_the_caches_again(
    fleet: Fleet,
) -> None:
    before = fleet.blocks()
    fleet.hold("a", 1)
    fleet.hold("b", 2)
    wait_for(lambda: fleet.blocks() >= before + 20)
    before = fleet.blocks()
    kill_worker(fleet)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: post(fleet.router.url, n), range(3, 11)))
    assert {answer.status_code for answer in answers} == {200}
    wait_for(lambda: fleet.blocks() >= before + 80)
    assert fleet.knows(1, "a")
    assert fleet.knows(2, "b")


def test_events_that_are_lost_are_replayed(fleet: Fleet) -> None:
    lost: list[KVEvent] = []

    def lose(events: list[KVEvent]) -> None:
        lost.extend(events)

    fleet.tap.alter = lose
    for number in (21, 22):
        fleet.hold("a", number)
    wait_for(lambda: sum(isinstance(event, BlockStored) for event in lost) >= 2)
    before = fleet.blocks()
    fleet.tap.alter = lambda events: events
    fleet.hold("a", 23)  # by whose batch the gap is seen
    wait_for(lambda: fleet.blocks() >= before + 30)
    for number in (21, 22, 23):
        assert fleet.knows(number, "a")


def test_a_replica_that_denies_what_it_has_is_believed_no_longer_than_an_answer(
    fleet: Fleet,
) -> None:
    def deny(events: list[KVEvent]) -> list[KVEvent]:
        stored = [event.block_hashes for event in events if isinstance(event, BlockStored)]
        return [*events, *(BlockRemoved(block_hashes=hashes) for hashes in stored)]

    fleet.tap.alter = deny
    numbers = range(31, 37)
    for number in numbers:
        fleet.hold("a", number)
    for number in numbers:
        fleet.ask(number)
    for number in numbers:
        predicted, chosen, found = fleet.ask(number)
        assert predicted[chosen] == found == 10 * BLOCK


def test_a_replica_that_claims_what_it_lacks_is_soon_not_believed(fleet: Fleet) -> None:
    lies = [
        BlockStored(
            block_hashes=hash_blocks(prompt(number), BLOCK),
            parent_block_hash=None,
            token_ids=[],
            block_size=BLOCK,
        )
        for number in range(41, 81)
    ]
    fleet.tap.alter = lambda events: [*events, *lies]
    before = fleet.blocks()
    fleet.hold("a", 40)
    wait_for(lambda: fleet.blocks() >= before + 410)
    numbers = iter(range(41, 81))

    def is_believed() -> bool:
        predicted, chosen, found = fleet.ask(next(numbers))
        return (predicted["a"], chosen, found) == (10 * BLOCK, "a", 0)

    assert any(is_believed() for _ in range(20)), "the lie was never told"
    told = [fleet.ask(next(numbers)) for _ in range(19)]
    for predicted, chosen, found in told[-10:]:
        assert predicted[chosen] == found == 0


async def test_prompts_stay_with_replicas_of_other_servers_after_a_router_was_killed(
    tmp_path: Path,
) -> None:
    others = [ScriptedReplica(pagelet=False) for _ in range(3)]
    for other in others:
        other.answer = whole({"choices": []})
    async with scripted(others):
        pool = {"replicas": [other.url for other in others]}
        command = router(tmp_path / "router.log", {"models": [{"pools": [pool]}]})

        async def ask(number: int) -> str:
            body = {"model": "m", "messages": [{"role": "user", "content": f"{number} " * 400}]}
            async with httpx.AsyncClient(timeout=60) as client:
                url = f"{command.url}/v1/chat/completions"
                response = await client.post(url, content=json.dumps(body))
            assert response.status_code == 200, response.text
            return str(response.headers["x-pagelet-replica"])

        try:
            await asyncio.to_thread(lambda: command.start().wait_ready())
            homes = [await ask(number) for number in range(6)]
            assert [await ask(number) for number in range(6)] == homes
            (worker,) = command.processes("pagelet.router.serve")
            os.kill(worker, signal.SIGKILL)
            again = await asyncio.gather(*(ask(number) for number in range(6)))
            assert [await ask(number) for number in range(6)] == again
        finally:
            await asyncio.to_thread(command.close)
