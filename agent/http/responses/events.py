"""A response as a stream of events, numbered and named as OpenAI's."""

from collections.abc import Callable
from typing import Any

import msgspec

from pagelet.agent.http.items import Begin, End, Grow, Item, ItemReader, Step
from pagelet.agent.http.logprobs import chat_logprobs
from pagelet.agent.http.responses.output import ResponseWriter
from pagelet.engine.outputs import RequestOutput
from pagelet.protocol.openai.common import Usage
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.openai.response_object import (
    OutputCall,
    OutputText,
    ReasoningText,
    ResponseObject,
)


class ResponseEvents:
    """The events of one response; `usage` is asked once it has ended."""

    def __init__(
        self,
        writer: ResponseWriter,
        reader: ItemReader,
        usage: Callable[[], Usage],
        num_before: int = 0,
        keep: Callable[[ResponseObject], None] | None = None,
    ) -> None:
        """`num_before` events were passed on by another replica. `keep` is called with the whole
        response; one that failed may go on elsewhere."""
        self._writer = writer
        self._reader = reader
        self._usage = usage
        self._number = num_before
        self._keep = keep

    def encode(self, number: int, output: RequestOutput) -> bytes:
        """See `Chunks`."""
        events = b""
        for name in ("response.created", "response.in_progress")[self._number :]:
            events += self._response(name, self._writer.begun())
        return events + b"".join(map(self._step, self._reader.push(output)))

    def end(self) -> bytes:
        """See `Chunks`."""
        whole = self._writer.whole(self._usage())
        if self._keep is not None:
            self._keep(whole)
        return self._response(f"response.{whole.status}", whole)

    def fail(self, error: ApiError) -> bytes:
        """The event that ends a stream which cannot go on."""
        return self._response("response.failed", self._writer.failed(error))

    def _step(self, step: Step) -> bytes:
        match step:
            case Begin(item):
                return self._begin(item)
            case Grow(item, text):
                fields: dict[str, Any] = {"delta": text}
                if item.kind == "text":
                    fields["logprobs"] = _logprobs(step.logprobs)
                return self._of_item(f"{_TEXT_EVENTS[item.kind]}.delta", item, fields)
            case End(item, cut):
                return self._end(item, cut)

    def _begin(self, item: Item) -> bytes:
        written = self._writer.begun_item(item)
        events = self._event(
            "response.output_item.added",
            {"output_index": item.index, "item": written.model_dump()},
        )
        if item.kind != "call":
            events += self._part("added", item)
        return events

    def _end(self, item: Item, cut: bool) -> bytes:
        text = item.text
        fields: dict[str, Any] = {"arguments" if item.kind == "call" else "text": text}
        if item.kind == "call":
            fields["name"] = item.name
        elif item.kind == "text":
            fields["logprobs"] = _logprobs(item.logprobs)
        events = self._of_item(f"{_TEXT_EVENTS[item.kind]}.done", item, fields)
        written = self._writer.item(item, "incomplete" if cut else "completed")
        if not isinstance(written, OutputCall):
            events += self._part("done", item, written.content[0])
        return events + self._event(
            "response.output_item.done",
            {"output_index": item.index, "item": written.model_dump()},
        )

    def _part(self, what: str, item: Item, part: OutputText | ReasoningText | None = None) -> bytes:
        if part is None:
            part = OutputText(text="") if item.kind == "text" else ReasoningText(text="")
        return self._of_item(f"response.content_part.{what}", item, {"part": part.model_dump()})

    def _of_item(self, name: str, item: Item, fields: dict[str, Any]) -> bytes:
        place = {"item_id": self._writer.item_id(item), "output_index": item.index}
        if item.kind != "call":
            place["content_index"] = 0
        return self._event(name, place | fields)

    def _response(self, name: str, response: ResponseObject) -> bytes:
        return self._event(name, {"response": response.model_dump()})

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        event = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(event))


_TEXT_EVENTS = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}


def _logprobs(logprobs: list[Any]) -> list[dict[str, Any]]:
    return [entry.model_dump() for entry in chat_logprobs(logprobs).content] if logprobs else []
