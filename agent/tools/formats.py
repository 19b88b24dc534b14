"""How models write calls of tools: found from a chat template, parsed, and enforced.

A format's `grammar` makes a model write calls of given tools and nothing else; in a format without
one of its own the calls are then written as JSON, which its requests are parsed as.
"""

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from pagelet.agent.tools.events import ToolParser
from pagelet.agent.tools.marked import HermesParser, MistralParser
from pagelet.agent.tools.whole import FencedParser, JsonParser, PythonicParser

_ANY_OBJECT: Final = {"type": "object"}


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
    trigger: str = ""
    """What begins a call in the midst of text; empty if calls are the whole message."""


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """One way to write calls."""

    name: str
    make_parser: Callable[[Collection[str]], ToolParser]
    """For answers that may call functions of these names."""
    spelling: Spelling | None = None
    special_tokens: tuple[str, ...] = ()
    """Marks that some vocabularies have as special tokens, which must then show in the text."""


JSON: Final = ToolFormat(
    "llama3_json",
    JsonParser,
    Spelling(
        begin=lambda name: f'{{"name": {name}, "parameters": ',
        end="}",
        between="; ",
    ),
    ("<|python_tag|>",),
)
HERMES: Final = ToolFormat(
    "hermes",
    lambda names: HermesParser(),
    Spelling(
        begin=lambda name: f'<tool_call>\n{{"name": {name}, "arguments": ',
        end="}\n</tool_call>",
        between="\n",
        trigger="<tool_call>",
    ),
    ("<tool_call>", "</tool_call>"),
)
MISTRAL: Final = ToolFormat(
    "mistral",
    lambda names: MistralParser(),
    Spelling(
        begin=lambda name: f'{{"name": {name}, "arguments": ',
        end="}",
        between=", ",
        first="[TOOL_CALLS] [",
        last="]",
    ),
    ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)
PYTHONIC: Final = ToolFormat("pythonic", PythonicParser, special_tokens=("<|python_tag|>",))
GEMMA: Final = ToolFormat("gemma", FencedParser)

FORMATS: Final = {each.name: each for each in (HERMES, JSON, PYTHONIC, MISTRAL, GEMMA)}


def detect_format(template: str | None) -> ToolFormat | None:
    """The format that a chat template teaches its model; None if it teaches none that is known."""
    if template is None or "<function=" in template:
        return None
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" in template:
        return HERMES
    if "tool_code" in template:
        return GEMMA
    if "[func_name1(" in template or "pythonic" in template:
        return PYTHONIC
    if "<|python_tag|>" in template or '"parameters": dictionary' in template:
        return JSON
    return None


def forced_calls(
    spelling: Spelling,
    tools: Sequence[Tool],
    literal: Callable[[str], str],
    whitespace: str,
    *,
    parallel: bool,
) -> str:
    """A Lark grammar of one call or, if `parallel`, one or several. `literal` spells a fixed text
    in Lark, and `whitespace` is what may stand between JSON's tokens."""
    more = f" ({literal(spelling.between)} call)*" if parallel else ""
    around = [f"{literal(text)} " if text else "" for text in (spelling.first, spelling.last)]
    rules = [f"start: {around[0]}call{more} {around[1]}", _any_call(tools)]
    rules += [
        f"call_{number}: {literal(spelling.begin(json.dumps(tool.name)))} "
        f"{_json(tool.schema, whitespace)} {literal(spelling.end)}"
        for number, tool in enumerate(tools)
    ]
    return "\n".join(["%llguidance {}", *rules])


def strict_calls(
    spelling: Spelling, tools: Sequence[Tool], literal: Callable[[str], str], whitespace: str
) -> str:
    """A Lark grammar of text in which calls, wherever they are, match their tools' schemas."""
    assert spelling.trigger
    rules = ["start: call* text", _any_call(tools), "text: TEXT", r"TEXT: /(.|\n)*/"]
    for number, tool in enumerate(tools):
        begin = spelling.begin(json.dumps(tool.name)).removeprefix(spelling.trigger)
        rules.append(f"trigger_{number}[lazy]: TEXT {json.dumps(spelling.trigger)}")
        rules.append(
            f"call_{number}: trigger_{number} {literal(begin)} "
            f"{_json(tool.schema, whitespace)} {literal(spelling.end)}"
        )
    return "\n".join(["%llguidance {}", *rules])


def _any_call(tools: Sequence[Tool]) -> str:
    return "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))


def _json(schema: dict[str, Any], whitespace: str) -> str:
    options = {"whitespace_pattern": whitespace}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
