"""Keys come once, one at a time, and again after a failure."""

import asyncio
from collections import Counter

from pagelet.operator.work_queue import WorkQueue


async def drive(queue: WorkQueue[str], seconds: float, workers: int = 4) -> list[str]:
    """Runs a queue for a while; the keys whose work failed."""
    failed: list[str] = []
    running = asyncio.ensure_future(queue.run(workers, lambda key, error: failed.append(key)))
    await asyncio.sleep(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return failed


async def test_a_key_that_waits_is_worked_on_once() -> None:
    done: Counter[str] = Counter()

    async def work(key: str) -> None:
        done[key] += 1

    queue = WorkQueue(work)
    for key in ["a", "b", "a", "a"]:
        queue.add(key)
    for _ in range(5):
        queue.add_later("c", 0.01)
    assert await drive(queue, 0.2) == []
    assert done == {"a": 1, "b": 1, "c": 1}
    assert len(queue) == 0


async def test_a_key_is_never_worked_on_twice_at_a_time_and_none_is_forgotten() -> None:
    running: Counter[str] = Counter()
    seen: list[int] = []
    version = 0

    async def work(key: str) -> None:
        running[key] += 1
        assert running[key] == 1
        read = version
        await asyncio.sleep(0.02)
        seen.append(read)
        running[key] -= 1

    queue = WorkQueue(work)
    working = asyncio.ensure_future(drive(queue, 0.5))
    for version in range(1, 11):  # noqa: B007
        queue.add("a")
        await asyncio.sleep(0.005)
    assert await working == []
    assert seen[-1] == 10, "the last change came while an earlier one was worked on"
    assert len(seen) < 10


async def test_a_failure_is_told_and_tried_again() -> None:
    attempts = 0
    succeeded = asyncio.Event()

    async def work(key: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ValueError
        succeeded.set()

    queue = WorkQueue(work)
    queue.add("a")
    working = asyncio.ensure_future(drive(queue, 5))
    await asyncio.wait_for(succeeded.wait(), 30)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert attempts == 2


async def test_what_was_asked_for_sooner_comes_first() -> None:
    order: list[str] = []

    async def work(key: str) -> None:
        order.append(key)

    queue = WorkQueue(work)
    queue.add_later("late", 0.2)
    queue.add_later("later", 60)
    queue.add_later("later", 0.3)
    queue.add_later("soon", 0.05)
    queue.add_later("late", 60)
    await drive(queue, 1.0)
    assert order == ["soon", "late", "later"]
