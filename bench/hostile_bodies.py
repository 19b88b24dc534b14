"""Requests that are made to take a server's time: grammars that explode, and bodies of many parts.

Each body has `SERIAL` where a number makes it new, so that no cache knows it.
"""

import json
from collections.abc import Callable
from typing import Any, Final

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
SERIAL: Final = b"@serial@"
_MAX_TOKENS: Final = 2
_MARK: Final = SERIAL.decode()

Make = Callable[[str], tuple[str, bytes]]


def _chat(model: str, **fields: Any) -> tuple[str, bytes]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hi."}],
        "max_tokens": _MAX_TOKENS,
        "user": _MARK,
    }
    return CHAT, json.dumps(body | fields).encode()


def _schema(schema: dict[str, Any]) -> Make:
    named = schema | {"title": _MARK}
    return lambda model: _chat(
        model,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": named}},
    )


def _guided(**fields: Any) -> Make:
    return lambda model: _chat(model, structured_outputs=fields)


def _nested(levels: int, width: int) -> dict[str, Any]:
    """Definitions each of which names the next one `width` times: width ** levels in full."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "string"}}
    for level in range(levels):
        following = {"$ref": f"#/$defs/d{level + 1}"}
        names = [f"p{number}" for number in range(width)]
        definitions[f"d{level}"] = {
            "type": "object",
            "properties": dict.fromkeys(names, following),
            "required": names,
        }
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def _choices_of_choices(levels: int) -> dict[str, Any]:
    """An allOf of alternatives: 2 ** levels of them together."""
    return {
        "allOf": [
            {
                "anyOf": [
                    {"properties": {f"a{level}": {"type": "string"}}, "required": [f"a{level}"]},
                    {"properties": {f"b{level}": {"type": "number"}}, "required": [f"b{level}"]},
                ]
            }
            for level in range(levels)
        ]
    }


def _tools(model: str) -> tuple[str, bytes]:
    parameters = {
        "type": "object",
        "properties": {
            f"p{number}": {"type": "string", "pattern": f"^(a|b){{1,{number + 1}}}$"}
            for number in range(40)
        },
    }
    tools = [
        {
            "type": "function",
            "function": {"name": f"f{number}", "description": _MARK, "parameters": parameters},
        }
        for number in range(128)
    ]
    return _chat(model, tools=tools, tool_choice="required")


GRAMMARS: Final[dict[str, Make]] = {
    "nested repeats": _guided(regex=f"((a{{1,999}}){{1,999}}){{1,999}}{_MARK}"),
    "doubling regex": _guided(regex=f"(a|b)*a(a|b){{400}}{_MARK}"),
    "late letters": _schema(
        {"allOf": [{"type": "string", "pattern": f".*a{number}.*"} for number in range(20)]}
    ),
    "doubling references": _schema(_nested(40, 2)),
    "wide references": _schema(_nested(4, 300)),
    "choices of choices": _schema(_choices_of_choices(24)),
    "huge enum": _schema({"enum": [f"value {number}" for number in range(25_000)]}),
    "many choices": _guided(choice=[_MARK, *(f"choice {number}" for number in range(9_999))]),
    "huge counts": _schema(
        {"type": "array", "minItems": 10**7, "items": {"type": "string", "maxLength": 10**8}}
    ),
    "many properties": _schema(
        {
            "type": "object",
            "properties": {f"p{number}": {"type": "integer"} for number in range(8_000)},
            "minProperties": 7,
        }
    ),
    "small multiples": _schema(
        {"type": "number", "multipleOf": 1e-7, "minimum": 0.1234567, "maximum": 98765.4321987}
    ),
    "lark, doubling": _guided(
        grammar="\n".join(
            [f'start: r0 "{_MARK}"']
            + [f"r{level}: r{level + 1} r{level + 1}" for level in range(40)]
            + ['r40: "a" | "b" |']
        )
    ),
    "lark, ambiguous": _guided(grammar=f'start: s "{_MARK}"\ns: s s s | s s | /a+/ | /[ab]+/ |'),
    "ebnf, repeats": _guided(grammar=f'root ::= ((("a"{{1,200}}){{1,200}}){{1,200}})* "{_MARK}"\n'),
    "ebnf, ambiguous": _guided(
        grammar=f'root ::= s "{_MARK}"\ns ::= s s s | s s | [a-z]* | ([a-z]* [a-z]*)* | ""\n'
    ),
    "ten megabytes": _schema({"enum": [f"value {number}" for number in range(700_000)]}),
    "deep nesting": lambda model: _chat(
        model, guided_json='{"items":' * 20_000 + f'"{_MARK}"' + "}" * 20_000
    ),
    "many tools": _tools,
}
"""By what they are."""


def _text(number: int) -> list[dict[str, str]]:
    return [{"type": "text", "text": "a"}] * number


BODIES: Final[dict[str, Make]] = {
    "many parts": lambda model: _chat(model, messages=[{"role": "user", "content": _text(19_000)}]),
    "many messages": lambda model: _chat(
        model, messages=[{"role": "user", "content": _text(1)}] * 6_000
    ),
    "short messages": lambda model: _chat(
        model, messages=[{"role": "user", "content": "a"}] * 8_000
    ),
    "tool definitions": lambda model: _chat(
        model, tools=[{"type": "function", "function": {"name": f"f{i}"}} for i in range(6_000)]
    ),
    "stop strings": lambda model: _chat(model, stop=["ab"] * 90_000),
    "bad words": lambda model: _chat(model, bad_words=["ab"] * 90_000),
    "logit bias": lambda model: _chat(model, logit_bias={str(i): 1.0 for i in range(90_000)}),
    "allowed ids": lambda model: _chat(model, allowed_token_ids=list(range(390_000))),
    "metadata": lambda model: _chat(model, metadata={str(i): "a" for i in range(45_000)}),
    "template options": lambda model: _chat(
        model, chat_template_kwargs={"a": {str(i): [] for i in range(19_000)}}
    ),
    "template numbers": lambda model: _chat(model, chat_template_kwargs={"a": [1.5e300] * 390_000}),
    "template documents": lambda model: _chat(model, documents=[{"a": "b"}] * 19_000),
    "calls of tools": lambda model: _chat(
        model,
        messages=[
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ]
                * 9_500,
            }
        ],
    ),
    "choices": lambda model: _chat(model, guided_choice=[_MARK] * 90_000),
    "schema of schemas": _schema({"anyOf": [{"title": "a"}] * 19_000}),
    "unknown names": lambda model: _chat(
        model, messages=[{"role": "user", "content": "a", **{f"k{i}": 1 for i in range(90_000)}}]
    ),
    "long text": lambda model: _chat(
        model, messages=[{"role": "user", "content": _MARK + "word " * 3_000_000}]
    ),
    "line breaks": lambda model: _chat(
        model, messages=[{"role": "user", "content": _MARK + "\n" * 8_000_000}]
    ),
    "one word": lambda model: _chat(
        model, messages=[{"role": "user", "content": _MARK + "a" * 15_000_000}]
    ),
    "prompts of one token": lambda model: (
        COMPLETIONS,
        json.dumps({"model": model, "prompt": [[5]] * 19_000, "max_tokens": 1}).encode(),
    ),
    "many ids": lambda model: (
        COMPLETIONS,
        json.dumps({"model": model, "prompt": [5] * 390_000, "max_tokens": 1}).encode(),
    ),
    "embeddings": lambda model: (
        "/v1/embeddings",
        json.dumps({"model": model, "input": [[5]] * 19_000}).encode(),
    ),
    "documents": lambda model: (
        "/v1/rerank",
        json.dumps({"model": model, "query": "a", "documents": ["a"] * 90_000}).encode(),
    ),
    "response items": lambda model: (
        "/v1/responses",
        json.dumps(
            {
                "model": model,
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}] * 19_000}
                ],
            }
        ).encode(),
    ),
    "response calls": lambda model: (
        "/v1/responses",
        json.dumps(
            {
                "model": model,
                "max_output_tokens": _MAX_TOKENS,
                "input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}]
                * 8_000,
            }
        ).encode(),
    ),
    "message blocks": lambda model: (
        "/v1/messages",
        json.dumps(
            {
                "model": model,
                "max_tokens": 1,
                "messages": [{"role": "user", "content": _text(19_000)}],
            }
        ).encode(),
    ),
}
"""By what they have many of: about as many as servers of Pagelet take."""
