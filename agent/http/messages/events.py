"""A message as a stream of events, named as Anthropic's."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from pagelet.agent.http.items import Begin, End, Grow, ItemReader, Step
from pagelet.agent.http.messages.output import (
    block,
    message_usage,
    stop_reason,
    stop_sequence,
)
from pagelet.engine.outputs import RequestOutput
from pagelet.protocol.anthropic.answers import MessageAnswer
from pagelet.protocol.openai.common import Usage, make_usage

_DELTAS: Final = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessageEvents:
    """The events of one message; `usage` is asked once it has ended."""

    def __init__(
        self,
        message_id: str,
        model: str,
        reader: ItemReader,
        usage: Callable[[], Usage],
        *,
        begun: bool = False,
    ) -> None:
        """`begun` if another replica passed its first event on."""
        self._id = message_id
        self._model = model
        self._reader = reader
        self._usage = usage
        self._begun = begun

    def encode(self, number: int, output: RequestOutput) -> bytes:
        """See `Chunks`."""
        events = b""
        if not self._begun:
            self._begun = True
            events = self._start(output)
        return events + b"".join(map(_step, self._reader.push(output)))

    def end(self) -> bytes:
        """See `Chunks`."""
        reader = self._reader
        delta = {"stop_reason": stop_reason(reader), "stop_sequence": stop_sequence(reader)}
        usage = message_usage(self._usage()).model_dump()
        return _event("message_delta", {"delta": delta, "usage": usage}) + _event(
            "message_stop", {}
        )

    def _start(self, output: RequestOutput) -> bytes:
        before = make_usage(output.num_prompt_tokens, 0, output.num_cached_tokens)
        message = MessageAnswer(
            id=self._id,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=message_usage(before),
        )
        return _event("message_start", {"message": message.model_dump()})


def _step(step: Step) -> bytes:
    place: dict[str, Any] = {"index": step.item.index}
    match step:
        case Begin(item):
            return _event("content_block_start", place | {"content_block": block(item.empty())})
        case Grow(item, text):
            kind, field = _DELTAS[item.kind]
            return _event("content_block_delta", place | {"delta": {"type": kind, field: text}})
        case End():
            return _event("content_block_stop", place)


def _event(name: str, fields: dict[str, Any]) -> bytes:
    data = msgspec.json.encode({"type": name, **fields})
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
