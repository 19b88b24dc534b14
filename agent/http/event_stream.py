"""Server-sent events, cheap a chunk: one ASGI `send`, no framework in between."""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagelet.agent.http.answers import Answers
from pagelet.agent.http.errors import as_api_error
from pagelet.agent.http.gate import RequestContext, context_of
from pagelet.engine.outputs import RequestOutput
from pagelet.process.disconnect import run_until_disconnect
from pagelet.protocol.anthropic.errors import error_event
from pagelet.protocol.openai.errors import ApiError

_log = logging.getLogger(__name__)

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Chunks(Protocol):
    """Turns deltas into events."""

    def encode(self, number: int, output: RequestOutput) -> bytes:
        """The events of a delta of prompt `number`; empty if it shows nothing."""
        ...

    def end(self) -> bytes:
        """The events after the last delta."""
        ...


FailureEvent = Callable[[ApiError], bytes]
"""Makes the event that ends a stream which cannot go on."""


class EventStream(Response):
    """Streams answers whose first delta has come, so that what fails before it can still be
    answered with a status of its own. Ends the answers when it ends, in whatever way."""

    def __init__(
        self,
        first: tuple[int, RequestOutput] | None,
        rest: AsyncIterator[tuple[int, RequestOutput]],
        answers: Answers,
        chunks: Chunks,
        context: RequestContext,
        failure: FailureEvent | None,
    ) -> None:
        super().__init__()
        self._first = first
        self._rest = rest
        self._answers = answers
        self._chunks = chunks
        self._context = context
        self._failure = failure

    @classmethod
    async def open(
        cls,
        answers: Answers,
        chunks: Chunks,
        context: RequestContext,
        failure: FailureEvent | None = None,
    ) -> Self:
        """Waits for the first delta; there is none if all answers were ended elsewhere."""
        deltas = aiter(answers)
        return cls(await anext(deltas, None), deltas, answers, chunks, context, failure)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `ClientGone` if the client goes away."""
        try:
            await run_until_disconnect(receive, self._write(scope["path"], send))
        finally:
            self._answers.close()
            self._context.note_usage(self._answers.usage())

    async def _write(self, path: str, send: Send) -> None:
        headers = list(_HEADERS)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        encode = self._chunks.encode
        try:
            last = b"" if self._first is None else encode(*self._first)
            if last:
                await send({"type": "http.response.body", "body": last, "more_body": True})
            async for number, output in self._rest:
                chunk = encode(number, output)
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            last = self._chunks.end()
        except Exception as error:
            # The status is out: an event tells the client, and no [DONE] follows.
            api_error = as_api_error(error)
            self._context.note_error(api_error)
            if api_error.status == 500:
                _log.exception("a stream failed")
            if self._failure is None:
                last = error_event(path, api_error)
            else:
                last = self._failure(api_error)
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def respond(
    request: Request, answers: Answers, work: Coroutine[Any, Any, Response]
) -> Response:
    """The response that `work` makes from `answers`, unless the client goes away first. Whatever
    happens the answers are closed, by the response itself if it is a stream."""
    try:
        response = await run_until_disconnect(request.receive, work)
    except BaseException:
        answers.close()
        usage = answers.usage()
        if usage.prompt_tokens:  # the engine had begun
            context_of(request).note_usage(usage)
        raise
    if not isinstance(response, EventStream):
        answers.close()
    return response
