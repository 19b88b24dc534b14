"""An answer as a sequence of items: thinking, text, and calls of tools, one after the other."""

import dataclasses
from typing import Any, Literal

from pagelet.agent.http.message import MessageReader, call_ids
from pagelet.agent.http.message_plan import MessagePlan
from pagelet.engine.outputs import PositionLogprobs, RequestOutput


@dataclasses.dataclass(slots=True)
class Item:
    """One of them, as far as it has come; `text` is the arguments' JSON in a call."""

    kind: Literal["reasoning", "text", "call"]
    index: int
    call_id: str = ""
    name: str = ""
    parts: list[str] = dataclasses.field(default_factory=list)
    logprobs: list[PositionLogprobs] = dataclasses.field(default_factory=list)
    """Of a text's tokens, if they were asked for."""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.parts)

    def empty(self) -> "Item":
        """As it was when it began."""
        return Item(self.kind, self.index, self.call_id, self.name)


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """An item begins. What the same delta brings of it is in it already."""

    item: Item


@dataclasses.dataclass(frozen=True, slots=True)
class Grow:
    """An item goes on with a text."""

    item: Item
    text: str
    logprobs: list[PositionLogprobs]


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """An item has ended; with `cut` it might have gone on, but for the bound on tokens, or a stop
    string in the midst of a call."""

    item: Item
    cut: bool = False


Step = Begin | Grow | End


class ItemReader:
    """The state of one answer. Only answers that are all content come with logprobs."""

    def __init__(self, plan: MessagePlan | None, response_id: str) -> None:
        make_id = call_ids(response_id, 0)
        self._reader = (
            MessageReader(None, None, make_id, parallel=True, shows_reasoning=True)
            if plan is None
            else plan.make_reader(make_id)
        )
        self._open: Item | None = None
        self._logprobs: list[PositionLogprobs] = []
        self.items: list[Item] = []
        self.cut = False
        """Whether the answer ended for the bound on its tokens."""
        self.stop: int | str | None = None
        """The stop string, or the token of the request's own, that ended it."""

    @property
    def calls(self) -> bool:
        """Whether it calls tools, the last one with all its arguments."""
        return self._reader.calls

    @property
    def breaks_off(self) -> bool:
        """Whether its last item is not whole: for the bound on its tokens, or, in a call, for a
        stop string."""
        ends_in_call = bool(self.items) and self.items[-1].kind == "call"
        return self.cut or (ends_in_call and not self._reader.calls)

    def push(self, output: RequestOutput) -> list[Step]:
        """What a delta brings."""
        if output.resumed_text:
            self._replay(output)
        finished = output.finish_reason is not None
        steps: list[Step] = []
        self._logprobs += output.logprobs or ()
        for delta in self._reader.read(output.text, ends=finished):
            self._take(delta, steps)
        if finished:
            self.cut = output.finish_reason == "length"
            self.stop = output.stop_reason
            self._close(steps, self.breaks_off)
        return steps

    def _replay(self, output: RequestOutput) -> None:
        """Takes in the text that another replica passed on."""
        for delta in self._reader.read(output.resumed_text, ends=False):
            self._take(delta, [])

    def _take(self, delta: dict[str, Any], steps: list[Step]) -> None:
        if "content" in delta:
            self._grow("text", delta["content"], steps)
        elif "reasoning_content" in delta:
            self._grow("reasoning", delta["reasoning_content"], steps)
        else:
            for call in delta["tool_calls"]:
                if "id" in call:
                    self._begin("call", steps, call["id"], call["function"]["name"])
                if arguments := call["function"]["arguments"]:
                    self._grow("call", arguments, steps)

    def _begin(
        self,
        kind: Literal["reasoning", "text", "call"],
        steps: list[Step],
        call_id: str = "",
        name: str = "",
    ) -> Item:
        self._close(steps)
        item = Item(kind, len(self.items), call_id, name)
        self.items.append(item)
        self._open = item
        steps.append(Begin(item))
        return item

    def _grow(
        self, kind: Literal["reasoning", "text", "call"], text: str, steps: list[Step]
    ) -> None:
        item = self._open
        if item is None or item.kind != kind:
            item = self._begin(kind, steps)
        logprobs, self._logprobs = self._logprobs, []
        item.parts.append(text)
        item.logprobs += logprobs
        steps.append(Grow(item, text, logprobs))

    def _close(self, steps: list[Step], cut: bool = False) -> None:
        if self._open is not None:
            self._open.logprobs += self._logprobs
            self._logprobs = []
            steps.append(End(self._open, cut))
            self._open = None
