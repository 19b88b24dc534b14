"""Keys to work on: each at most once in the queue, and by one worker at a time."""

import asyncio
import heapq
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")

_FIRST_BACKOFF: Final = 1.0
_LONGEST_BACKOFF: Final = 60.0


class WorkQueue(Generic[K]):
    """Work arrives as keys. A key that arrives while it is worked on is worked on once more; one
    whose work failed comes again, after twice as long each time."""

    def __init__(self, work: Callable[[K], Awaitable[None]]) -> None:
        """`work` raises what `failed` is told of."""
        self._work = work
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._count = 0
        self._timer = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._running)

    def add(self, key: K) -> None:
        """Now."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_later(self, key: K, seconds: float) -> None:
        """In a while, or sooner if that was asked for before."""
        when = time.monotonic() + seconds
        if self._due.get(key, math.inf) <= when:
            return
        self._due[key] = when
        self._count += 1  # a tie of times is not broken by keys, which need no order
        heapq.heappush(self._later, (when, self._count, key))
        self._timer.set()

    async def run(self, workers: int, failed: Callable[[K, Exception], None]) -> None:
        """Works for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_time())
            for _ in range(workers):
                tasks.create_task(self._run_one(failed))

    async def _run_one(self, failed: Callable[[K, Exception], None]) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                await self._work(key)
                self._failures.pop(key, None)
            except Exception as error:
                failed(key, error)
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                self.add_later(key, min(_FIRST_BACKOFF * 2 ** (failures - 1), _LONGEST_BACKOFF))
            finally:
                self._running.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    async def _keep_time(self) -> None:
        while True:
            self._timer.clear()
            wait = self._later[0][0] - time.monotonic() if self._later else None
            if wait is not None and wait <= 0:
                when, _, key = heapq.heappop(self._later)
                if self._due.get(key) == when:  # else it was asked for sooner meanwhile
                    del self._due[key]
                    self.add(key)
                continue
            try:
                async with asyncio.timeout(wait):
                    await self._timer.wait()
            except TimeoutError:
                pass
