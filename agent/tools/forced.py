"""Answers that call a function and do nothing else, also where they are cut off."""

from collections.abc import Mapping

from pagelet.agent.tools.events import CallBegin, Content, Event, ToolParser


class ForcedParser:
    """Around the parser of a format, whose `spellings` are how an answer begins that calls a
    function, by the function's name. What is cut off before the call's arguments is no text: it is
    the call, without arguments, if no other can begin so."""

    def __init__(self, parser: ToolParser, spellings: Mapping[str, str]) -> None:
        self._parser = parser
        self._spellings = spellings
        self._text = ""
        """All of it, as long as it calls nothing."""
        self._called = False

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        events = self._parser.push(text)
        self._called = self._called or any(isinstance(event, CallBegin) for event in events)
        if not self._called:
            self._text += text
        return events

    def finish(self) -> list[Event]:
        """See `ToolParser`."""
        events: list[Event] = [
            event for event in self._parser.finish() if not isinstance(event, Content)
        ]
        begun = self._text.lstrip()
        if self._called or events or not begun:
            return events
        meant = [
            name
            for name, spelled in self._spellings.items()
            if spelled.startswith(begun) or begun.startswith(spelled)
        ]
        return [CallBegin(meant[0])] if len(meant) == 1 else []
