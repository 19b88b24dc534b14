"""From an answer's text to the message that a client gets: content, thinking and calls of tools."""

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pagelet.agent.reasoning import ReasoningSplitter
from pagelet.agent.tools.events import (
    CallArguments,
    CallBegin,
    Content,
    Event,
    Reasoning,
    ToolParser,
)
from pagelet.protocol.openai.chat import AssistantMessage
from pagelet.protocol.openai.tools import FunctionCall, ToolCall


class MessageReader:
    """The state of one answer. What it makes of a text does not depend on how the text is cut."""

    def __init__(
        self,
        splitter: ReasoningSplitter | None,
        parser: ToolParser | None,
        make_id: Callable[[int], str],
        *,
        parallel: bool,
        shows_reasoning: bool,
    ) -> None:
        self._splitter = splitter
        self._parser = parser
        self._make_id = make_id
        self._most_calls = None if parallel else 1
        self._shows_reasoning = shows_reasoning
        self.num_calls = 0
        """Calls so far, those that are left out for want of `parallel` included."""
        self._arguments = list[str]()
        """Of the last call that was not left out."""

    @property
    def calls(self) -> bool:
        """Whether there are calls, the last of them with all its arguments: a stop string, or the
        bound on tokens, may have cut it off."""
        if not self.num_calls:
            return False
        try:
            json.loads("".join(self._arguments))
        except (ValueError, RecursionError):
            return False
        return True

    def read(self, text: str, *, ends: bool) -> list[dict[str, Any]]:
        """The deltas of a message, in OpenAI's shape, that the text brings."""
        deltas = (self._delta(event) for event in merged(self._events(text, ends)))
        return [delta for delta in deltas if delta]

    def _events(self, text: str, ends: bool) -> list[Event]:
        if self._splitter is None:
            return self._parse(text, ends)
        found = self._splitter.push(text) + (self._splitter.finish() if ends else [])
        events: list[Event] = []
        for event in found:
            events += self._parse(event.text, False) if isinstance(event, Content) else [event]
        return events + (self._parse("", True) if ends else [])

    def _parse(self, text: str, ends: bool) -> list[Event]:
        if self._parser is None:
            return [Content(text)] if text else []
        return self._parser.push(text) + (self._parser.finish() if ends else [])

    def _delta(self, event: Event) -> dict[str, Any]:
        """Empty if it is left out."""
        match event:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text} if self._shows_reasoning else {}
            case CallBegin(name):
                self.num_calls += 1
                if not self._leaves_out:
                    self._arguments.clear()
                call = {
                    "id": self._make_id(self.num_calls - 1),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
            case CallArguments(text):
                if not self._leaves_out:
                    self._arguments.append(text)
                call = {"function": {"arguments": text}}
        if self._leaves_out:
            return {}
        return {"tool_calls": [{"index": self.num_calls - 1, **call}]}

    @property
    def _leaves_out(self) -> bool:
        return self._most_calls is not None and self.num_calls > self._most_calls


def merged(events: Sequence[Event]) -> list[Event]:
    """The events with texts of one kind that follow one another as one."""
    result: list[Event] = []
    for event in events:
        match (result[-1] if result else None), event:
            case Content(before), Content(after):
                result[-1] = Content(before + after)
            case Reasoning(before), Reasoning(after):
                result[-1] = Reasoning(before + after)
            case CallArguments(before), CallArguments(after):
                result[-1] = CallArguments(before + after)
            case _:
                result.append(event)
    return result


def call_ids(response_id: str, choice: int) -> Callable[[int], str]:
    """Names a choice's calls: the same again when another replica goes on with the answer."""

    def make_id(call: int) -> str:
        digest = hashlib.sha256(f"{response_id}/{choice}/{call}".encode()).hexdigest()
        return f"call_{digest[:24]}"

    return make_id


def whole_message(deltas: Collection[dict[str, Any]]) -> AssistantMessage:
    """The message that deltas add up to."""
    content, reasoning, calls = "", "", list[ToolCall]()
    for delta in deltas:
        content += delta.get("content", "")
        reasoning += delta.get("reasoning_content", "")
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                function = FunctionCall(name=part["function"]["name"], arguments="")
                calls.append(ToolCall(id=part["id"], function=function))
            else:
                calls[-1].function.arguments += part["function"]["arguments"]
    return AssistantMessage(
        content=content if content or not calls else None,
        reasoning_content=reasoning or None,
        tool_calls=calls,
    )
