"""Grammars of calls, in llguidance's Lark: of answers that must call, and what others need too."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

_ANY_OBJECT: Final = {"type": "object"}

Literal = Callable[[str], str]
"""Spells a fixed text in Lark."""


@dataclasses.dataclass(frozen=True)
class Tool:
    """A function that may be called."""

    name: str
    parameters: dict[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """Of its arguments."""
        return self.parameters or _ANY_OBJECT


@dataclasses.dataclass(frozen=True)
class Spelling:
    """The fixed text around a call's arguments, and around and between calls."""

    begin: Callable[[str], str]
    """What precedes the arguments of a function, its name as JSON spells it."""
    end: str
    between: str
    first: str = ""
    last: str = ""

    def beginning(self, name: str) -> str:
        """Of an answer that calls a function, up to the arguments."""
        return self.first + self.begin(json.dumps(name))


def grammar(*rules: str) -> str:
    """Of rules, the first of which is `start`."""
    return "\n".join(["%llguidance {}", *rules])


def json_of(schema: Any, whitespace: str) -> str:
    """JSON that matches a schema; `whitespace` is what may stand between its tokens."""
    schema = schema if isinstance(schema, dict) else {"allOf": [schema]}
    options = {"whitespace_pattern": whitespace}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def any_of(prefix: str, tools: Sequence[Tool]) -> str:
    """A choice among the rules of all tools: those of `prefix` and a tool's number."""
    return "(" + " | ".join(f"{prefix}_{number}" for number in range(len(tools))) + ")"


def json_calls(
    begin: Callable[[str], str],
    end: str,
    tools: Sequence[Tool],
    literal: Literal,
    whitespace: str,
    prefix: str = "call",
) -> list[str]:
    """Rules of a call of each tool, which spell its name and arguments as JSON."""
    return [
        f"{prefix}_{number}: {literal(begin(json.dumps(tool.name)))} "
        f"{json_of(tool.schema, whitespace)} {literal(end)}"
        for number, tool in enumerate(tools)
    ]


def forced_calls(
    spelling: Spelling,
    tools: Sequence[Tool],
    literal: Literal,
    whitespace: str,
    *,
    parallel: bool,
) -> str:
    """A grammar of one call or, if `parallel`, one or several."""
    more = f" ({literal(spelling.between)} call)*" if parallel else ""
    around = [f"{literal(text)} " if text else "" for text in (spelling.first, spelling.last)]
    return grammar(
        f"start: {around[0]}call{more} {around[1]}",
        f"call: {any_of('call', tools)}",
        *json_calls(spelling.begin, spelling.end, tools, literal, whitespace),
    )
