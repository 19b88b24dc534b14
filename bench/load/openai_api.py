"""Requests and streamed answers of the OpenAI API, as a load generator sees them."""

import dataclasses
from typing import Any, Literal

import msgspec

from pagelet.bench.load.events import EventParser
from pagelet.bench.load.http_client import RequestFailed
from pagelet.bench.load.workload import Prompt

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}


@dataclasses.dataclass(frozen=True)
class RequestOptions:
    """What all requests of a run have in common."""

    model: str
    endpoint: Endpoint = "completions"
    ignore_eos: bool = True
    """Not part of the API, but known to vLLM, SGLang, llama.cpp and Pagelet."""
    temperature: float | None = 0.0
    """None leaves it to the server."""
    extra_body: dict[str, Any] = dataclasses.field(default_factory=dict)

    def body(self, prompt: Prompt, max_tokens: int) -> bytes:
        """The JSON of a streaming request. In a chat, a prompt of text is one user's message."""
        fields: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.endpoint == "chat":
            fields["max_completion_tokens"] = max_tokens
            if isinstance(prompt, str):
                fields["messages"] = [{"role": "user", "content": prompt}]
            else:
                fields["messages"] = prompt
        else:
            fields["max_tokens"] = max_tokens
            fields["prompt"] = prompt
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields | self.extra_body)


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


class AnswerReader:
    """Reads one streamed answer: feed it the body's bytes with the time at which they came."""

    def __init__(self) -> None:
        self.token_times: list[float] = []
        """When each event with a choice came: one token, or more where the server joined some. A
        chat's first event that only names the role is none."""
        self.text: list[str] = []
        self.usage = _Usage()
        self._events = EventParser()
        self._done = False

    def __call__(self, data: bytes, now: float) -> None:
        """Raises `RequestFailed` for an event that tells of an error or is no JSON."""
        for payload in self._events.feed(data):
            if payload == b"[DONE]":
                self._done = True
                continue
            try:
                chunk = _DECODER.decode(payload)
            except msgspec.DecodeError as error:
                raise RequestFailed("malformed event", f"{error}: {payload[:200]!r}") from None
            if chunk.error is not None:
                raise RequestFailed("error in the stream", str(chunk.error)[:500])
            if chunk.usage is not None:
                self.usage = chunk.usage
            if chunk.choices and _has_token(choice := chunk.choices[0]):
                self.token_times.append(now)
                self.text.append((choice.delta.content if choice.delta else choice.text) or "")

    def check(self) -> None:
        """Raises `RequestFailed` unless the answer has ended as it should, with a token."""
        if not self._done:
            raise RequestFailed(
                "stream without [DONE]", f"it ended with {self._events.pending[-200:]!r}"
            )
        if not self.token_times:
            raise RequestFailed("no token in the answer")

    @property
    def num_tokens(self) -> int:
        """As the server counted them; the number of events where it did not."""
        counted = self.usage.completion_tokens
        return len(self.token_times) if counted is None else counted


def _has_token(choice: _Choice) -> bool:
    delta = choice.delta
    return delta is None or bool(delta.content) or delta.role is None
