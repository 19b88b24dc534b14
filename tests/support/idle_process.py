"""A process that is none."""

import asyncio


class IdleProcess:
    """In place of a process: it runs until it is told to end."""

    pid = 1

    def __init__(self) -> None:
        self.ends = asyncio.Event()

    async def wait(self) -> int:
        await self.ends.wait()
        return 0

    def terminate(self) -> None:
        self.ends.set()

    kill = terminate
