"""Formats in which the whole message is one or several calls, or none: Llama, Gemma."""

import ast
import json
from collections.abc import Collection, Sequence
from typing import Any, Final

from pagelet.agent.tools.events import CallArguments, CallBegin, Content, Event, held_back
from pagelet.agent.tools.json_call import JsonCall
from pagelet.agent.tools.marked import TextBetween

_SPACE = " \t\r\n"


class JsonParser:
    """Llama 3's: a message that begins with `{` (or `[{`), perhaps after `<|python_tag|>`, is calls
    with `;`, `,` or white space between them. An object that calls none of the tools is text."""

    _TAG = "<|python_tag|>"

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._head = ""
        """The text before the first `{`, as long as a call may follow."""
        self._is_text = False
        self._call: JsonCall | None = None
        self._called = False

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        events: list[Event] = []
        for used, char in enumerate(text):
            if self._is_text:
                return [*events, *([] if self._called else [Content(text[used:])])]
            events += self._push(char)
        return events

    def finish(self) -> list[Event]:
        """See `ToolParser`."""
        return [] if self._is_text else self._give_up()

    def _push(self, char: str) -> list[Event]:
        if self._call is None:
            if char == "{":
                self._call = JsonCall(self._names)
                return self._call.push(char)
            self._head += char
            head = self._head.lstrip()
            starts = self._TAG.startswith(head) or head.removeprefix(self._TAG).strip() in ("", "[")
            between = self._called and not head.strip(_SPACE + ";,]")
            return [] if starts or between else self._give_up()
        events = self._call.push(char)
        self._called = self._called or bool(events)
        if self._call.ended:
            self._head, self._call = "", None
        elif self._call.broken:
            return events + self._give_up()
        return events

    def _give_up(self) -> list[Event]:
        """What was held back is text, unless calls went before it."""
        self._is_text = True
        text = self._head + (self._call.raw if self._call is not None else "")
        return [Content(text)] if text and not self._called else []


class PythonicParser:
    """Llama 3.2's and 4's: the message is a list of calls as Python writes them,
    `[f(a=1), g(b="x")]`. A call is passed on when it is complete."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._raw = ""
        self._is_text = False
        self._calls = _PythonCalls()
        self._called = False

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        events: list[Event] = []
        for used, char in enumerate(text):
            if self._is_text:
                return [*events, *([] if self._called else [Content(text[used:])])]
            self._raw += char
            if self._raw.lstrip()[:1] not in ("", "["):
                events += self._give_up()
                continue
            call = self._calls.push(char) if self._raw.lstrip() not in ("", "[") else None
            if call is not None:
                parsed = parse_python_call(call, self._names)
                if parsed is None:
                    events += self._give_up()
                else:
                    self._called = True
                    events += parsed
        return events

    def finish(self) -> list[Event]:
        """See `ToolParser`."""
        return [] if self._is_text else self._give_up()

    def _give_up(self) -> list[Event]:
        self._is_text = True
        return [Content(self._raw)] if self._raw and not self._called else []


class _PythonCalls:
    """Cuts text into calls at their closing parentheses."""

    def __init__(self) -> None:
        self._text = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def push(self, char: str) -> str | None:
        """The call that the character completes."""
        if not self._depth and not self._text and char in ",]" + _SPACE:
            return None
        self._text += char
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1
            if not self._depth and char == ")":
                text, self._text = self._text, ""
                return text
        return None


def parse_python_call(text: str, names: Collection[str] | None) -> list[Event] | None:
    """The events of one call with keyword arguments that are literals; None for anything else."""
    text = text.strip().replace("\r\n", "\n").replace("\r", "\n")  # Python counts lines so
    lines = text.encode(errors="replace").split(b"\n")
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call):
            return None
        name = ast.unparse(node.func)
        if node.args or (names is not None and name not in names):
            return None
        arguments = {
            keyword.arg: _value(lines, keyword.value) for keyword in node.keywords if keyword.arg
        }
        encoded = json.dumps(arguments, ensure_ascii=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return [CallBegin(name), CallArguments(encoded)]


def _value(lines: Sequence[bytes], node: ast.expr) -> Any:
    """A literal as JSON, if it is that too: its strings have escapes of their own, and models write
    its `true` as well as Python's `True`."""
    try:
        return json.loads(_source_of(lines, node), parse_constant=_no_constant)
    except ValueError:
        return ast.literal_eval(node)


def _source_of(lines: Sequence[bytes], node: ast.expr) -> bytes:
    """How the text of these lines, in UTF-8, spells a node: `ast.get_source_segment` would read
    all of the text for each."""
    assert node.end_lineno is not None
    found = list(lines[node.lineno - 1 : node.end_lineno])
    found[-1] = found[-1][: node.end_col_offset]
    found[0] = found[0][node.col_offset :]
    return b"\n".join(found)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_FENCE: Final = "```"


class _FenceFinder:
    """Finds where a block ends: at a fence that is not part of a quoted string, none of which goes
    on in the next line."""

    def __init__(self) -> None:
        self._quote = ""
        self._escaped = False
        self._ticks = 0

    def push(self, char: str) -> bool:
        """Whether the character is the last of the fence."""
        if self._quote:
            if char == "\n" or (char == self._quote and not self._escaped):
                self._quote = ""
            self._escaped = char == "\\" and not self._escaped
            return False
        if char in "\"'":
            self._quote, self._escaped = char, False
        self._ticks = self._ticks + 1 if char == "`" else 0
        return self._ticks == len(_FENCE)


class FencedParser:
    """Gemma's: a fenced block of `tool_code` (Python) or `tool_call` (JSON) in the text. A block's
    calls are passed on when it is complete; a block that holds none is text."""

    _MARKS = ("```tool_code", "```tool_call")

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._text = TextBetween()
        self._pending = ""
        self._mark = ""
        self._block: list[str] = []
        """What has come of a block, behind its mark."""
        self._fence = _FenceFinder()

    def push(self, text: str) -> list[Event]:
        """See `ToolParser`."""
        self._pending += text
        events: list[Event] = []
        while self._pending:
            if self._mark:
                events += self._read_block()
                continue
            found = [at for mark in self._MARKS if (at := self._pending.find(mark)) >= 0]
            if found:
                first = min(found)
                events += self._text.push(self._pending[:first])
                end = first + len(self._MARKS[0])
                self._mark, self._pending = self._pending[first:end], self._pending[end:]
                continue
            shown = len(self._pending) - held_back(self._pending, self._MARKS)
            events += self._text.push(self._pending[:shown])
            self._pending = self._pending[shown:]
            break
        return events

    def finish(self) -> list[Event]:
        """See `ToolParser`."""
        events: list[Event] = []
        if self._mark:  # a model may stop without closing its last block, or a string in it
            body, fence, self._pending = "".join(self._block).partition(_FENCE)
            events += self._end_block(body, fence)
        events += self._text.push(self._pending)
        self._pending = ""
        return events + self._text.finish()

    def _read_block(self) -> list[Event]:
        """Reads on, each character once, up to the end of the block or of what has come."""
        for used, char in enumerate(self._pending, start=1):
            if self._fence.push(char):
                self._block.append(self._pending[:used])
                self._pending = self._pending[used:]
                return self._end_block("".join(self._block).removesuffix(_FENCE), _FENCE)
        self._block.append(self._pending)
        self._pending = ""
        return []

    def _end_block(self, body: str, fence: str) -> list[Event]:
        raw = self._mark + body + fence
        self._mark, self._block, self._fence = "", [], _FenceFinder()
        calls = parse_json_calls(body, self._names) or self._python_calls(body)
        if not calls:
            return self._text.push(raw)
        self._text.call()
        return calls

    def _python_calls(self, body: str) -> list[Event]:
        cut, events = _PythonCalls(), list[Event]()
        for char in body.strip().removeprefix("["):
            call = cut.push(char)
            if call is None:
                continue
            inner = call.strip()
            if inner.startswith("print(") and inner.endswith(")"):
                inner = inner[len("print(") : -1]
            events += parse_python_call(inner, self._names) or ()
        return events


def parse_json_calls(text: str, names: Collection[str] | None) -> list[Event]:
    """The events of a JSON call, or of an array of them; none if it is anything else."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    events: list[Event] = []
    for each in value if isinstance(value, list) else [value]:
        call = JsonCall(names)
        read: list[Event] = []
        for char in json.dumps(each, ensure_ascii=False):
            if call.ended or call.broken:
                break
            read += call.push(char)
        if not call.ended:
            return []
        events += read
    return events
