"""Work that ends when its client goes away; an ASGI server tells, but cancels nothing itself."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; if the client disconnects first, `work` is cancelled and `ClientGone`
    raised. The request's body must have been read."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
