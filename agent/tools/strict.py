"""Grammars of whole messages in which the model may call or not, and calls, wherever they are,
match their tools' schemas: one for each format.

A text that would be read as a call is no text: where calls have no mark of their own, a text must
not begin as a call of one of the tools. The rest of a message is free.
"""

import json
import keyword
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pagelet.agent.tools.grammars import (
    Literal,
    Tool,
    any_of,
    grammar,
    json_calls,
    json_of,
)
from pagelet.protocol.errors import InvalidRequest

_ALL: Final = "(?s:.*)"
_TEXT: Final = ("text: TEXT", f"TEXT: /{_ALL}/")
_TAG: Final = "<|python_tag|>"
_WITH_PROPERTIES: Final = {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"),
    *("$id", "$comment", "title", "description", "default", "examples", "deprecated"),
}
"""Keywords of a schema that calls with named arguments can follow."""


_CONSTANTS: Final = ('"True"', '"False"', '"None"')


def hermes_calls(tools: Sequence[Tool], literal: Literal, whitespace: str) -> str:
    """Text with `<tool_call>` JSON `</tool_call>` anywhere."""
    return grammar(
        "start: call* text",
        f"call: trigger {any_of('call', tools)}",
        _trigger("<tool_call>", literal),
        *_TEXT,
        *json_calls(
            lambda name: f'\n{{"name": {name}, "arguments": ',
            "}\n</tool_call>",
            tools,
            literal,
            whitespace,
        ),
    )


def json_message(tools: Sequence[Tool], literal: Literal, whitespace: str) -> str:
    """Llama 3's: all of the message is calls, or none of it."""
    names = "|".join(re.escape(tool.name) for tool in tools)
    called = rf'\{{.*"name"\s*:\s*"({names})"'
    tag = re.escape(_TAG)
    return grammar(
        "start: text | tag? calls",
        'calls: call ("; " call)*',
        f"call: {any_of('call', tools)}",
        f"tag: {literal(_TAG)}",
        "text: TEXT",
        f"TEXT: /{_ALL}/ & ~/(?s:\\s*({tag}.*|(\\[\\s*)?{called}.*))/",
        *json_calls(
            lambda name: f'{{"name": {name}, "parameters": ', "}", tools, literal, whitespace
        ),
    )


def mistral_calls(tools: Sequence[Tool], literal: Literal, whitespace: str) -> str:
    """Text, then perhaps the mark, and calls to the end: an array, or each after a mark."""
    named = [
        f"named_{number}: {literal(tool.name)} ({literal('[CALL_ID]')} ID)? "
        f"{literal('[ARGS]')} {json_of(tool.schema, whitespace)}"
        for number, tool in enumerate(tools)
    ]
    return grammar(
        "start: text | trigger (array | named)",
        f'array: /( )?\\[/ {any_of("call", tools)} (", " {any_of("call", tools)})* "]"',
        f"named: {any_of('named', tools)} ({literal('[TOOL_CALLS]')} {any_of('named', tools)})*",
        "ID: /[a-zA-Z0-9]{9}/",
        _trigger("[TOOL_CALLS]", literal),
        *_TEXT,
        *named,
        *json_calls(
            lambda name: f'{{"name": {name}, "arguments": ', "}", tools, literal, whitespace
        ),
    )


def pythonic_message(tools: Sequence[Tool], literal: Literal, whitespace: str) -> str:
    """A list of calls as Python writes them, or text. Tools that no such call can name are out."""
    tools = [tool for tool in tools if _is_name(tool.name)]
    if not tools:
        return grammar("start: text", *_TEXT)
    names = "|".join(re.escape(tool.name) for tool in tools)
    return grammar(
        f'start: text | {any_of("first", tools)} (", " {any_of("call", tools)})* "]"',
        "text: TEXT",
        f"TEXT: /{_ALL}/ & ~/(?s:\\s*\\[\\s*({names})\\s*\\(.*)/",
        *_python_calls(tools, whitespace, {"first": "[", "call": ""}),
    )


def fenced_calls(tools: Sequence[Tool], literal: Literal, whitespace: str) -> str:
    """Gemma's: blocks of `tool_code` with Python, or of `tool_call` with JSON, anywhere."""
    rules = json_calls(
        lambda name: f'{{"name": {name}, "arguments": ', "}", tools, literal, whitespace, "json"
    )
    bodies = [f'"all\\n" {any_of("json", tools)}']
    python = [tool for tool in tools if _is_name(tool.name) and _misfit(tool) is None]
    if python:
        line = f'({any_of("call", python)} | {any_of("shown", python)} ")")'
        bodies.append(f'"ode\\n" {line} ("\\n" {line})*')
        rules += _python_calls(python, whitespace, {"call": "", "shown": "print("})
    return grammar(
        "start: call* text",
        f'call: trigger ({" | ".join(bodies)}) "\\n```"',
        _trigger("```tool_c", literal),
        *_TEXT,
        *rules,
    )


def _trigger(mark: str, literal: Literal) -> str:
    """Text up to a mark. One that is a token of its own ends the text by itself; any other does
    as soon as it is there."""
    spelled = literal(mark)
    lazy = "[lazy]" if spelled == json.dumps(mark) else ""
    return f"trigger{lazy}: TEXT {spelled}"


def _is_name(text: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in text.split("."))


def _misfit(tool: Tool) -> str | None:
    """Why a call with named arguments cannot be held to the tool's schema; None if it can."""
    if not tool.strict:
        return None
    schema = tool.schema
    for word in schema.keys() - _WITH_PROPERTIES:
        return f"has {word!r} at its top"
    properties = schema.get("properties", {})
    for name in [*properties, *schema.get("required", ())]:
        if not name.isidentifier() or keyword.iskeyword(name):
            return f"has the property {name!r}, which is no name in Python"
    for target in _references(properties):
        if not target.startswith(("#/$defs/", "#/definitions/")):
            return f"refers to {target!r}"
    return None


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _python_calls(tools: Sequence[Tool], whitespace: str, before: dict[str, str]) -> list[str]:
    """Rules of a call of each tool, its arguments as JSON after their names; one rule a prefix of
    `before`, with the text that it begins with."""
    rules = [
        'free: NAME "=" value',
        f"NAME: /[A-Za-z_][A-Za-z0-9_]*/ & ~/{'|'.join(keyword.kwlist)}/",
        rf"value: {' | '.join(_CONSTANTS)} | /'[^'\\\x00-\x1f\x7f]*'/ | {json_of({}, whitespace)}",
    ]
    for number, tool in enumerate(tools):
        rules += [
            f'{prefix}_{number}: {json.dumps(f"{text}{tool.name}(")} args_{number} ")"'
            for prefix, text in before.items()
        ]
        rules += _arguments(f"args_{number}", tool, whitespace)
    return rules


def _arguments(rule: str, tool: Tool, whitespace: str) -> list[str]:
    """In the schema's order, those left out that are not required."""
    if not tool.strict:
        return [f'{rule}: (free (", " free)*)?']
    reason = _misfit(tool)
    if reason is not None:
        raise InvalidRequest(
            f"tools: the strict function {tool.name!r} {reason}, which calls in this model's "
            "format cannot be held to: set 'tool_choice' to 'required', or leave 'strict' out",
            "tools",
        )
    schema = tool.schema
    required = schema.get("required", [])
    properties = {**schema.get("properties", {})}
    properties |= {name: {} for name in required if name not in properties}
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    rules = [f"{rule}: {rule}_first_0", f'{rule}_first_{len(properties)}: ""']
    rules.append(f'{rule}_next_{len(properties)}: ""')
    for at, (name, value) in enumerate(properties.items()):
        inner = value if isinstance(value, dict) else {"allOf": [value]}
        rules.append(f'{rule}_{at}: "{name}=" {json_of({**shared, **inner}, whitespace)}')
        more, none = f"{rule}_next_{at + 1}", f"{rule}_first_{at + 1}"
        optional = name not in required
        rules.append(f"{rule}_first_{at}: {rule}_{at} {more}" + (f" | {none}" if optional else ""))
        given = f'", " {rule}_{at} {more}'
        rules.append(f"{rule}_next_{at}: {given}" + (f" | {more}" if optional else ""))
    return rules
