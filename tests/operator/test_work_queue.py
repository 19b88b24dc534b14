"""Keys come once, one at a time, and again after a failure."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from pagelet.operator.work_queue import WorkQueue

SECONDS = 30
"""For what must come, however busy the machine is."""


@contextlib.asynccontextmanager
async def working(queue: WorkQueue[str], workers: int = 4) -> AsyncIterator[list[str]]:
    """Runs a queue; the keys whose work failed."""
    failed: list[str] = []
    running = asyncio.ensure_future(queue.run(workers, lambda key, error: failed.append(key)))
    try:
        async with asyncio.timeout(SECONDS):
            yield failed
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_key_that_waits_is_worked_on_once() -> None:
    done: Counter[str] = Counter()
    last = asyncio.Event()

    async def work(key: str) -> None:
        done[key] += 1
        if key == "last":
            last.set()

    queue = WorkQueue(work)
    for key in ["a", "b", "a", "a"]:
        queue.add(key)
    for _ in range(5):
        queue.add_later("c", 0.01)
    queue.add_later("last", 0.02)
    async with working(queue) as failed:
        await last.wait()
    assert failed == []
    assert done == {"a": 1, "b": 1, "c": 1, "last": 1}
    assert len(queue) == 0


async def test_a_key_is_never_worked_on_twice_at_a_time_and_none_is_forgotten() -> None:
    seen: list[int] = []
    version, at_work = 1, 0
    begun, may_end, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(key: str) -> None:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        read = version
        begun.set()
        await may_end.wait()
        seen.append(read)
        at_work -= 1
        if read == 10:
            over.set()

    queue = WorkQueue(work)
    queue.add("a")
    async with working(queue) as failed:
        await begun.wait()
        for version in range(2, 11):  # noqa: B007
            queue.add("a")
            await asyncio.sleep(0)
        may_end.set()
        await over.wait()
    assert failed == []
    assert seen == [1, 10], "all changes that came meanwhile are looked at together"


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
    async with working(queue) as failed:
        await succeeded.wait()
    assert (attempts, failed) == (2, ["a"])


async def test_what_was_asked_for_sooner_comes_first() -> None:
    order: list[str] = []
    over = asyncio.Event()

    async def work(key: str) -> None:
        order.append(key)
        if len(order) == 3:
            over.set()

    queue = WorkQueue(work)
    queue.add_later("late", 0.1)
    queue.add_later("later", 60)
    queue.add_later("later", 0.2)
    queue.add_later("soon", 0.05)
    queue.add_later("late", 60)
    async with working(queue):
        await over.wait()
    assert order == ["soon", "late", "later"]
