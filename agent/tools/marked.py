"""Formats whose calls stand between marks in the text: Hermes, Qwen, Mistral."""

from collections.abc import Collection

from pagelet.agent.tools.events import CallArguments, CallBegin, Content, Event, held_back
from pagelet.agent.tools.json_call import JsonCall, JsonValue

_SPACE = " \t\r\n"


class TextBetween:
    """The text around calls. White space at its end waits: beside a call it is dropped."""

    def __init__(self) -> None:
        self._space = ""
        self._follows_call = False
        self.called = False

    def push(self, text: str) -> list[Event]:
        """Text that is not part of a call."""
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if self._follows_call:
            shown = shown.lstrip()
            self._follows_call = not shown
        return [Content(shown)] if shown else []

    def call(self) -> None:
        """A call begins."""
        self.called = self._follows_call = True
        self._space = ""

    def finish(self) -> list[Event]:
        """The text ends."""
        return [Content(self._space)] if self._space and not self.called else []


class HermesParser:
    """`<tool_call>` JSON object `</tool_call>`, any number of them in the text."""

    _BEGIN, _END = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._text = TextBetween()
        self._pending = ""
        self._call: JsonCall | None = None

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        self._pending += text
        events: list[Event] = []
        while self._pending:
            if self._call is None:
                if not self._find_begin(events):
                    break
            elif self._call.ended or self._call.broken:
                if not self._find_end(events):
                    break
            else:
                self._read_call(events)
        return events

    def finish(self) -> list[Event]:
        """See `ToolParser`."""
        events: list[Event] = []
        if self._call is None:
            events += self._text.push(self._pending)
        elif not self._call.begun and not self._text.called:  # else a call that was cut off
            events += self._text.push(self._BEGIN + self._call.raw + self._pending)
        self._pending = ""
        return events + self._text.finish()

    def _find_begin(self, events: list[Event]) -> bool:
        before, mark, after = self._pending.partition(self._BEGIN)
        if mark:
            events += self._text.push(before)
            self._pending, self._call = after, JsonCall()
            return True
        shown = len(before) - held_back(before, (self._BEGIN,))
        events += self._text.push(before[:shown])
        self._pending = before[shown:]
        return False

    def _read_call(self, events: list[Event]) -> None:
        assert self._call is not None
        for used, char in enumerate(self._pending, start=1):
            events += self._call.push(char)
            if self._call.begun:
                self._text.call()
            if self._call.ended or self._call.broken:
                self._pending = self._pending[used:]
                return
        self._pending = ""

    def _find_end(self, events: list[Event]) -> bool:
        """Passes over what follows a call; what was none is text."""
        assert self._call is not None
        if self._call.ended:
            self._pending = self._pending.lstrip()
            if self._END.startswith(self._pending) and self._pending != self._END:
                return False
            self._pending = self._pending.removeprefix(self._END)
        elif self._call.begun:  # what follows a call that broke off is no text either
            _, mark, after = self._pending.partition(self._END)
            kept = len(self._pending) - held_back(self._pending, (self._END,))
            self._pending = after if mark else self._pending[kept:]
            if not mark:
                return False
        else:
            events += self._text.push(self._BEGIN + self._call.raw)
        self._call = None
        return True


class MistralParser:
    """`[TOOL_CALLS]` and a JSON array of calls, or, in newer models, a name and its arguments, each
    after a mark of its own. All that follows the mark is calls, or else text; what stands before
    `{` and names none of the tools calls nothing."""

    _BEGIN = "[TOOL_CALLS]"
    _ARGS, _ID = "[ARGS]", "[CALL_ID]"

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._text = TextBetween()
        self._pending = ""
        self._in_calls = False
        self._raw = ""
        """All from the mark on, as long as it calls nothing."""
        self._call: JsonCall | None = None
        self._name = ""
        self._arguments: JsonValue | None = None
        self._calls = False
        """Whether the arguments are those of a tool."""

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        events: list[Event] = []
        if not self._in_calls:
            self._pending += text
            before, mark, after = self._pending.partition(self._BEGIN)
            shown = len(before) - (0 if mark else held_back(before, (self._BEGIN,)))
            events += self._text.push(before[:shown])
            self._pending = "" if mark else before[shown:]
            if not mark:
                return events
            self._in_calls, self._raw, text = True, mark, after
        for char in text:
            if not self._text.called:
                self._raw += char
            events += self._push(char)
        return events

    def finish(self) -> list[Event]:
        """See `ToolParser`."""
        rest = "" if self._text.called else self._pending + self._raw
        return self._text.push(rest) + self._text.finish()

    def _push(self, char: str) -> list[Event]:
        events: list[Event] = []
        if self._call is not None:
            events = self._call.push(char)
            if self._call.ended or self._call.broken:
                self._call = None
        elif self._arguments is not None:
            if self._arguments.push(char) and self._calls:
                events = [CallArguments(char)]
            if self._arguments.ended:
                self._arguments = None
        elif char == "{" and self._name:
            name = self._name.removesuffix(self._ARGS).partition(self._ID)[0].strip()
            self._name, self._arguments = "", JsonValue()
            self._arguments.push(char)
            self._calls = name in self._names
            events = [CallBegin(name), CallArguments(char)] if self._calls else []
        elif char == "{":
            self._call = JsonCall()
            events = self._call.push(char)
        elif self._name or char not in "[,]" + _SPACE:
            # The mark's first bracket may as well begin an array.
            self._name = (self._name + char).removeprefix(self._BEGIN[1:])
        if events:
            self._text.call()
        return events
