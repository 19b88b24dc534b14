"""How models write calls of tools: found from a chat template, parsed, and enforced.

A format's `spelling` makes a model write calls of given tools and nothing else; in a format without
one of its own the calls are then written as JSON, which its requests are parsed as. Its `strict`
grammar leaves the model free to call or not.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pagelet.agent.tools import strict
from pagelet.agent.tools.events import ToolParser
from pagelet.agent.tools.grammars import Literal, Spelling, Tool
from pagelet.agent.tools.marked import HermesParser, MistralParser
from pagelet.agent.tools.whole import FencedParser, JsonParser, PythonicParser


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """One way to write calls."""

    name: str
    make_parser: Callable[[Collection[str]], ToolParser]
    """For answers that may call functions of these names."""
    strict: Callable[[Sequence[Tool], Literal, str], str]
    """The grammar of messages whose calls match their tools' schemas."""
    spelling: Spelling | None = None
    special_tokens: tuple[str, ...] = ()
    """Marks that some vocabularies have as special tokens, which must then show in the text."""


JSON: Final = ToolFormat(
    "llama3_json",
    JsonParser,
    strict.json_message,
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
    strict.hermes_calls,
    Spelling(
        begin=lambda name: f'<tool_call>\n{{"name": {name}, "arguments": ',
        end="}\n</tool_call>",
        between="\n",
    ),
    ("<tool_call>", "</tool_call>"),
)
MISTRAL: Final = ToolFormat(
    "mistral",
    MistralParser,
    strict.mistral_calls,
    Spelling(
        begin=lambda name: f'{{"name": {name}, "arguments": ',
        end="}",
        between=", ",
        first="[TOOL_CALLS] [",
        last="]",
    ),
    ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
)
PYTHONIC: Final = ToolFormat(
    "pythonic", PythonicParser, strict.pythonic_message, special_tokens=("<|python_tag|>",)
)
GEMMA: Final = ToolFormat("gemma", FencedParser, strict.fenced_calls)

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
