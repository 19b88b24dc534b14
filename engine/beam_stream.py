"""A beam search over an asynchronous engine, read like the answers to any other prompt."""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from pagelet.engine.beam_search import Beam, BeamSearch
from pagelet.engine.observer import RequestTimes
from pagelet.engine.outputs import PositionLogprobs, RequestOutput
from pagelet.engine.request_stream import RequestStream
from pagelet.protocol.engine import EngineCoreRequest


class StartRequests(Protocol):
    """Hands requests, each with its index, to the engine core of `engine_index`, if it is there.
    Raises `EngineDead` if none is."""

    def __call__(
        self,
        wanted: Sequence[tuple[int, EngineCoreRequest]],
        num_prompt_tokens: int,
        engine_index: int | None = None,
    ) -> RequestStream: ...


Decode = Callable[[list[int], bool], Awaitable[str]]


class BeamStream:
    """The answers come whole, the best first, once the search is over. `close` (idempotent) aborts
    it; call it in a `finally`."""

    def __init__(self, search: BeamSearch, start: StartRequests, decode: Decode) -> None:
        """Starts. Raises `EngineDead`."""
        self.num_prompt_tokens = search.num_prompt_tokens
        self.times: list[RequestTimes] = []
        """Of the answers, once they have come."""
        self._search = search
        self._start = start
        self._decode = decode
        self._step = self._extend(None)
        self.engine_index = self._step.engine_index

    def _extend(self, engine_index: int | None) -> RequestStream:
        requests = list(enumerate(self._search.requests()))
        return self._start(requests, self.num_prompt_tokens, engine_index)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        """Raises `EngineDead` if the engine core died. An answer that tells of an error is the
        last."""
        search = self._search
        num_cached_tokens: int | None = None
        began: RequestTimes | None = None
        while True:
            positions: dict[int, PositionLogprobs] = {}
            async for output in self._step:
                if not output.logprobs:  # an error, or it was aborted
                    yield output
                    return
                positions[output.index] = output.logprobs[0]
                if num_cached_tokens is None:
                    num_cached_tokens = output.num_cached_tokens
            times = self._step.times[-1]
            began = began or times
            search.advance([positions[index] for index in sorted(positions)])
            if search.done:
                break
            self._step = self._extend(self._step.engine_index)
        for beam in search.best:
            self.times.append(
                dataclasses.replace(
                    began,
                    params=search.params,
                    finish_reason=beam.finish_reason or "length",
                    num_generated_tokens=len(beam.token_ids),
                    last_token=times.last_token,
                )
            )
        for index, beam in enumerate(search.best):
            yield await self._output(index, beam, num_cached_tokens or 0)

    async def _output(self, index: int, beam: Beam, num_cached_tokens: int) -> RequestOutput:
        params = self._search.params
        shown = self._search.shown(beam)
        return RequestOutput(
            index=index,
            text=await self._decode(shown, params.skip_special_tokens),
            token_ids=beam.token_ids,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generated_tokens=len(beam.token_ids),
            num_cached_tokens=num_cached_tokens,
            finish_reason=beam.finish_reason,
            logprobs=beam.positions or None,
        )

    @property
    def finished(self) -> bool:
        """Whether the search is over."""
        return self._search.done

    def lose(self, why: str) -> None:
        """The reader gets `EngineDead`."""
        self._step.lose(why)

    def close(self) -> None:
        """Aborts what still runs."""
        self._step.close()


AnswerStream = RequestStream | BeamStream
"""The answers to a prompt, however they are found."""
