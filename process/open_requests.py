"""The requests that a drain waits for."""

import asyncio


class OpenRequests:
    """Counts them. For one event loop."""

    def __init__(self) -> None:
        self.open_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def open_request(self) -> None:
        """One began."""
        self.open_requests += 1
        self._idle.clear()

    def close_request(self) -> None:
        """It ended."""
        self.open_requests -= 1
        if not self.open_requests:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Until none is open."""
        await self._idle.wait()
