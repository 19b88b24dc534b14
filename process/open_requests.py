"""The requests that a drain waits for."""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

BODY_SECONDS: Final = 5.0
"""For bodies that still come when a drain begins: whoever sends more slowly loses no work of ours,
and sends it again elsewhere."""


class OpenRequests:
    """Counts them. For one event loop."""

    def __init__(self) -> None:
        self.open_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._bodies: set[asyncio.Timeout] = set()
        self._body_seconds: float | None = None

    def open_request(self) -> None:
        """One began."""
        self.open_requests += 1
        self._idle.clear()

    def close_request(self) -> None:
        """It ended."""
        self.open_requests -= 1
        if not self.open_requests:
            self._idle.set()

    async def whole_body(self, body: Awaitable[T]) -> T:
        """What reads a request's body brings. Raises `TimeoutError` if a drain does not wait for it
        any more."""
        async with asyncio.timeout(self._body_seconds) as limit:
            self._bodies.add(limit)
            try:
                return await body
            finally:
                self._bodies.discard(limit)

    def hurry_bodies(self) -> None:
        """From now on no body takes longer than `BODY_SECONDS`."""
        if self._body_seconds is not None:
            return
        self._body_seconds = BODY_SECONDS
        ends = asyncio.get_running_loop().time() + BODY_SECONDS
        for limit in self._bodies:
            limit.reschedule(ends)

    async def wait_idle(self) -> None:
        """Until none is open."""
        await self._idle.wait()
