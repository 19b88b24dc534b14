"""What a caller of the engine gets: an answer's deltas, and the errors that a caller can cause."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import overload

from pagelet.engine.observer import RequestTimes
from pagelet.protocol.engine import FinishReason, TokenLogprobs


@dataclasses.dataclass(slots=True)
class Logprob:
    """One candidate at a position. `token` is its text alone and `token_bytes` the exact bytes,
    which for a part of a UTF-8 character differ."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    rank: int | None = None


@dataclasses.dataclass(slots=True)
class PositionLogprobs:
    """The token at a position and the most likely candidates there."""

    chosen: Logprob
    top: list[Logprob]


class PromptPositions(Sequence[PositionLogprobs | None]):
    """A prompt's logprobs, each made when it is asked for: those of a long prompt take long, and
    who gets them may have a thread for that, which the event loop that hears the engine is not."""

    def __init__(
        self,
        entries: Sequence[TokenLogprobs | None],
        make: Callable[[TokenLogprobs], PositionLogprobs],
    ) -> None:
        self._entries = entries
        self._make = make

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> "PromptPositions": ...
    def __getitem__(self, index: int | slice) -> "PositionLogprobs | PromptPositions | None":
        if isinstance(index, slice):
            return PromptPositions(self._entries[index], self._make)
        entry = self._entries[index]
        return None if entry is None else self._make(entry)


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """News of one answer since the last such object. Joined `text`s are the answer's text."""

    index: int
    """Which of the `n` answers."""
    text: str
    token_ids: list[int]
    num_prompt_tokens: int
    num_generated_tokens: int
    """So far, those of this delta included."""
    num_cached_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[PositionLogprobs] | None = None
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    error: str | None = None
    request_fault: bool = False
    """Whether the request is the reason of the error, and would fail again."""
    pooled: bytes | None = None
    """The prompt's vector, float32, where that was asked for and no text."""
    resumed_text: str = ""
    """With the first delta of an answer that another engine began: the text that it passed on."""
    num_thinking_tokens: int = 0
    """Of those generated. The engine leaves it to readers who know how the model thinks."""
    times: RequestTimes | None = dataclasses.field(default=None, compare=False)
    """With the last delta."""

    def merge(self, later: "RequestOutput") -> None:
        """Takes in the delta that follows, when the reader is slower than the engine."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.num_generated_tokens = later.num_generated_tokens
        self.num_cached_tokens = max(self.num_cached_tokens, later.num_cached_tokens)
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        self.error, self.request_fault = later.error, later.request_fault
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs


class EngineDead(RuntimeError):
    """The engine died or is not there: HTTP 503; a retry may succeed once it is back."""


class EngineAbsent(EngineDead):
    """The engine is not there, and has seen nothing of the request."""
