"""A call spelled as a JSON object, read one character at a time."""

import enum
import json
from collections.abc import Collection

from pagelet.agent.tools.events import CallArguments, CallBegin, Event

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class JsonValue:
    """Finds the end of a JSON value."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False
        self.ended = False
        """Whether the value was complete, perhaps before the last character."""

    def push(self, char: str) -> bool:
        """Whether the character is part of the value."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                self.ended = not self._depth
            return True
        if not self._begun and char in _SPACE:
            return False
        if self._begun and not self._depth and char in ",}]" + _SPACE:
            self.ended = True  # a number or a word ends where something else begins
            return False
        self._begun = True
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.ended = self._depth <= 0
        return True


class _At(enum.Enum):
    START = enum.auto()
    KEY = enum.auto()
    COLON = enum.auto()
    VALUE = enum.auto()
    COMMA = enum.auto()
    END = enum.auto()
    BROKEN = enum.auto()


class JsonCall:
    """`{"name": ..., "arguments": {...}}`, in either order, the arguments passed on as they come.

    `names`: the only functions that may be called; None for any. An object that is no such call is
    `broken`, and nothing was said of it before.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = names
        self._at = _At.START
        self._value = JsonValue()
        self._key = ""
        self._text = ""
        self._name: str | None = None
        self._arguments: str | None = None
        self._begun = False
        self.raw = ""
        """All that was read."""

    @property
    def ended(self) -> bool:
        """Whether the object is complete."""
        return self._at is _At.END

    @property
    def broken(self) -> bool:
        """Whether this is no call."""
        return self._at is _At.BROKEN

    @property
    def begun(self) -> bool:
        """Whether the call was announced."""
        return self._begun

    def push(self, char: str) -> list[Event]:
        """Takes the next character; none may follow once the object has ended or is broken."""
        self.raw += char
        match self._at:
            case _At.START:
                if char == "{":
                    self._expect(_At.KEY)
                elif char not in _SPACE:
                    self._at = _At.BROKEN
            case _At.KEY:
                return self._push_key(char)
            case _At.COLON:
                if char == ":":
                    self._expect(_At.VALUE)
                elif char not in _SPACE:
                    self._at = _At.BROKEN
            case _At.VALUE:
                return self._push_value(char)
            case _At.COMMA:
                return self._push_comma(char)
        return []

    def _expect(self, at: _At) -> None:
        self._at, self._value, self._text = at, JsonValue(), ""

    def _push_key(self, char: str) -> list[Event]:
        if not self._text and char not in _SPACE + '"':
            if char == "}":
                return self._end()
            self._at = _At.BROKEN
        elif self._value.push(char):
            self._text += char
            if self._value.ended:
                key = _loads(self._text)
                self._key = key if isinstance(key, str) else ""
                self._at = _At.COLON
        return []

    def _push_value(self, char: str) -> list[Event]:
        belongs = self._value.push(char)
        events: list[Event] = []
        if belongs:
            self._text += char
            if self._key in _ARGUMENTS and self._text[0] != '"':
                events = self._add_arguments(char)
        if self._value.ended:
            events += self._end_value()
            if not belongs and not self.broken:
                self._at = _At.COMMA
                return events + self._push_comma(char)
        return events

    def _end_value(self) -> list[Event]:
        self._at = _At.COMMA
        if self._key == "name":
            name = _loads(self._text)
            if not isinstance(name, str) or (self._names is not None and name not in self._names):
                self._at = _At.BROKEN
                return []
            self._name = name
            return self._add_arguments("") if self._arguments is not None else []
        if self._key in _ARGUMENTS and self._text[0] == '"':  # JSON inside of a JSON string
            decoded = _loads(self._text)
            return self._add_arguments(decoded if isinstance(decoded, str) else self._text)
        return []

    def _add_arguments(self, text: str) -> list[Event]:
        self._arguments = (self._arguments or "") + text
        if self._name is None:
            return []
        begin: list[Event] = [] if self._begun else [CallBegin(self._name)]
        self._begun = True
        text, self._arguments = self._arguments, ""
        return [*begin, CallArguments(text)] if text else begin

    def _push_comma(self, char: str) -> list[Event]:
        if char == ",":
            self._expect(_At.KEY)
        elif char == "}":
            return self._end()
        elif char not in _SPACE:
            self._at = _At.BROKEN
        return []

    def _end(self) -> list[Event]:
        if self._name is None:
            self._at = _At.BROKEN
            return []
        self._at = _At.END
        return [] if self._begun else self._add_arguments("{}")


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
