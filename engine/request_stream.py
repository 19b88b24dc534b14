"""The answers to one prompt, as an asynchronous reader gets them from an engine."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from pagelet.engine.observer import RequestTimes
from pagelet.engine.outputs import EngineDead, RequestOutput


class RequestStream:
    """Deltas of all answers to one prompt, as they come; ends when all have ended.

    A reader slower than the engine gets several deltas of an answer as one. `close` (idempotent)
    aborts whatever still runs; call it in a `finally`.
    """

    def __init__(self, num_answers: int, abort: Callable[["RequestStream"], None]) -> None:
        self.request_ids: list[int] = []
        self.engine_index = 0
        self.num_prompt_tokens = 0
        self.times: list[RequestTimes] = []
        """Of the answers that have ended, in whatever way."""
        self._unfinished = num_answers
        self._abort = abort
        self._pending: deque[RequestOutput] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._lost: str | None = None
        self._closed = False

    def put(self, output: RequestOutput) -> None:
        """The sink of every answer of this prompt."""
        if output.times is not None:
            self.times.append(output.times)
        if self._closed:
            return
        if output.finish_reason is not None:
            self._unfinished -= 1
        for pending in self._pending:
            if pending.index == output.index:
                pending.merge(output)
                break
        else:
            self._pending.append(output)
        self._wake()

    def lose(self, why: str) -> None:
        """The engine died, or there is no more time: the reader gets `EngineDead`."""
        self._lost = why
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        """Raises `EngineDead` if the engine core died with answers unfinished."""
        while not self._pending or self._lost is not None:
            if self._lost is not None:
                raise EngineDead(self._lost)
            if not self._unfinished:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._pending.popleft()

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return not self._unfinished

    def close(self) -> None:
        """Aborts what still runs."""
        if not self._closed:
            self._closed = True
            if self._unfinished:
                self._unfinished = 0
                self._abort(self)
