"""Requests that no sound client sends, or that one might: bodies that are mostly right with
something wrong in them, costly grammars, broken JSON, broken HTTP. The same for the same seed."""

import copy
import dataclasses
import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

MODEL = "sim"


@dataclasses.dataclass(frozen=True)
class Sent:
    """One request as it goes over the wire."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    is_framed: bool = True
    """Whether the headers and the body fit together, so that an answer must come."""
    leaves_early: bool = False
    """Whether the client goes after the first bytes of the answer."""

    def encode(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: x"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + self.body


def _nested(depth: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


class _Raw(str):
    """JSON text to put in as it is."""


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**40),
    *("", " ", "a", "\0", "\ud800", "\udfff\ud800", "\U0001f9d1\u200d\U0001f680", "é" * 300, "{}"),
    *(
        "<|im_end|>",
        "<think>",
        "<tool_call>",
        "[TOOL_CALLS]",
        "x" * 5000,
        "sim",
        "text",
        "function",
    ),
    *([], [[]], {}, [None], [1, "a"], {"": ""}, {"type": "text"}, {"a": {"b": []}}),
    *(_nested(90), _nested(90, "dict"), [0] * 3000, ["a"] * 3000),
    *(
        _Raw("NaN"),
        _Raw("Infinity"),
        _Raw("-Infinity"),
        _Raw("1e999"),
        _Raw("-1e999"),
        _Raw("1e-999"),
    ),
    *(_Raw("9" * 400), _Raw("0." + "1" * 400), _Raw("-0"), _Raw("1E5"), _Raw('"\\ud83d"')),
)

NESTED_SCHEMA: dict[str, Any] = {"type": "string"}
for _level in range(9):
    NESTED_SCHEMA = {
        "oneOf": [NESTED_SCHEMA, {"type": "object", "properties": {"a": NESTED_SCHEMA}}]
    }

SCHEMAS: tuple[Any, ...] = (
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/$defs/missing"},
    {"$ref": "https://example.com/schema"},
    {"anyOf": []},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"enum": []},
    {"enum": [f"value {number}" for number in range(5000)]},
    {"enum": ["\ud800"]},
    {"const": _Raw("1e999")},
    {"type": "string", "pattern": "(a|a)*b"},
    {"type": "string", "pattern": "(((a{1,50}){1,50}){1,50})"},
    {"type": "string", "pattern": "["},
    {"type": "string", "pattern": "(?=x)y\\1"},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "string", "maxLength": 100_000},
    {"type": "string", "format": "no-such-format"},
    {"type": "array", "minItems": 100_000, "items": {"type": "integer"}},
    {"type": "array", "items": False},
    {"type": "integer", "minimum": 5, "maximum": 2},
    {"type": "number", "multipleOf": 1e-9},
    {"type": "number", "multipleOf": 0},
    {"type": "nothing"},
    {"type": ["string", 5]},
    {"type": []},
    {"properties": {f"p{number}": {"type": "string"} for number in range(400)}},
    {"properties": [], "required": "a"},
    {"not": {}},
    {"if": {"type": "string"}, "then": {"minLength": 3}},
    {"patternProperties": {"^(a+)+$": {"type": "null"}}, "additionalProperties": False},
    NESTED_SCHEMA,
    _nested(200, "dict"),
    {"items": _nested(60, "dict")},
    *(True, False, "{}", "not JSON", "true", 5, [], None),
)
REGEXES: tuple[str, ...] = (
    *("a+", "", "(", "[", "(?<n>a)", "\\p{Greek}+", "(a*)*b", "(a|b|ab)*c", "\\d{1,5}", "a{1000}"),
    *("((a{1,100}){1,100}){1,100}", "(?i)x", "^a$", "\\b", "(?=a)", "[^\\x00-\\x7f]{3}", "\ud800"),
    *("(" * 300 + "a" + ")" * 300, ".{0,5000}x", "|".join(f"w{number}" for number in range(3000))),
)
GRAMMARS: tuple[str, ...] = (
    *('root ::= "a"', "root ::= root", 'root ::= "a" root | "b"', "root ::= missing", "root ::="),
    *('root ::= ("a"{1,1000}){1,1000}', 'x ::= "a"', 'start: "a"', "start: start", "start: x"),
    *(
        'start: "a"*',
        "start: /(/",
        "start: A\nA: /a{1,10000}/",
        "%llguidance {}\nstart: <[99999999]>",
    ),
    *("start: %json {", "", "\0", 'root ::= [^"]{1,100000}', "start: " + "(" * 2000, "\ud800"),
    'root ::= "' + "a" * 20_000 + '"',
    "\n".join(f"r{number} ::= r{number + 1} r{number + 1}" for number in range(40))
    + '\nr40 ::= "a"',
)
TAGS: tuple[Any, ...] = (
    {"type": "structural_tag", "format": {"type": "any_text"}},
    {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}},
    {"type": "structural_tag", "format": {"type": "no_such"}},
    {"type": "structural_tag", "format": {}},
    {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f"],
    },
    {"type": "structural_tag", "structures": [{}], "triggers": [""]},
    {"type": "structural_tag", "structures": [], "triggers": []},
    {
        "type": "structural_tag",
        "structures": [{"begin": "", "schema": {"type": "no"}, "end": ""}],
        "triggers": ["a", "ab"],
    },
)
FUNCTIONS: tuple[Any, ...] = (
    {"name": "f"},
    {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"name": "g", "parameters": {"type": "object"}, "strict": True},
    {"name": "?"},
    {"name": "a" * 64, "description": "\ud800"},
)

Choose = Callable[[random.Random], Any]


def _one_of(*values: Any) -> Choose:
    return lambda rng: rng.choice(values)


def _text(rng: random.Random) -> str:
    return rng.choice(
        (
            "Hi",
            "",
            "a b c",
            "Count to three. " * 40,
            "\U0001f468\u200d\U0001f469",
            "<|im_end|>",
            "\n",
        )
    )


def _messages(rng: random.Random) -> Any:
    messages: list[Any] = []
    for _ in range(rng.randint(1, 4)):
        role = rng.choice(("user", "user", "user", "assistant", "system", "developer", "tool"))
        content: Any = _text(rng)
        if rng.random() < 0.2:
            content = [{"type": "text", "text": _text(rng)} for _ in range(rng.randint(0, 3))]
        messages.append({"role": role, "content": content})
        if role == "tool":
            messages[-1]["tool_call_id"] = "c"
        if role == "assistant" and rng.random() < 0.3:
            call = {"name": "f", "arguments": rng.choice(("{}", "{", '{"a": 1}', "[]", ""))}
            messages[-1]["tool_calls"] = [{"id": "c", "type": "function", "function": call}]
    return messages


def _tools(rng: random.Random) -> Any:
    functions = rng.sample(FUNCTIONS, rng.randint(1, 3))
    tools = [{"type": "function", "function": dict(function)} for function in functions]
    if rng.random() < 0.4:
        tools[0]["function"]["parameters"] = rng.choice(SCHEMAS)  # type: ignore[index]
        tools[0]["function"]["strict"] = rng.random() < 0.5  # type: ignore[index]
    return tools


_SCHEMA: Choose = _one_of(*SCHEMAS)
_GENERATION: dict[str, Choose] = {
    "n": _one_of(1, 2, 3, 0, 1000),
    "stream": _one_of(True, True, False),
    "stream_options": _one_of({"include_usage": True}, {"continuous_usage_stats": True}, {}),
    "temperature": _one_of(0, 1, 2, 2.1, -1, 1e-30),
    "top_p": _one_of(0, 0.5, 1, 1.1, 1e-30),
    "top_k": _one_of(0, -1, 1, 40, 10**6, -2),
    "min_p": _one_of(0, 0.5, 1, 2),
    "presence_penalty": _one_of(0, 2, -2, 3),
    "frequency_penalty": _one_of(0, 2, -2, 3),
    "repetition_penalty": _one_of(1, 0, -1, 1e-9, 1e9),
    "seed": _one_of(0, -1, 2**63 - 1, -(2**63), 2**64),
    "stop": _one_of("", "a", ["a", "b"], [], [""], ["x" * 3000], ["a"] * 40, "\ud800"),
    "stop_token_ids": _one_of([], [1, 2], [49151], [49152], [-1], list(range(3000))),
    "logit_bias": _one_of(
        {}, {"5": 100}, {"5": -100}, {"99999": 1}, {"x": 1}, {"-1": 1}, {"5": 1e300}
    ),
    "allowed_token_ids": _one_of([], [5], [5, 6], [49152], list(range(2000))),
    "bad_words": _one_of([], ["a"], [""], ["x" * 500], ["\ud800"]),
    "prompt_logprobs": _one_of(0, 1, 20, 21, -1),
    "ignore_eos": _one_of(True, False),
    "min_tokens": _one_of(0, 2, 9, 1000),
    "max_tokens": _one_of(0, 1, 8, -1, 10**9),
    "truncate_prompt_tokens": _one_of(0, 1, 5, -1, -2, 10**9),
    "skip_special_tokens": _one_of(True, False),
    "include_stop_str_in_output": _one_of(True, False),
    "add_special_tokens": _one_of(True, False),
    "return_token_ids": _one_of(True, False),
    "priority": _one_of(0, 5, -5, 2**62),
    "cache_salt": _one_of("", "a", "\0", "\ud800", "x" * 3000),
    "request_id": _one_of("", "a", "\r\nX: y", "\ud800", "é", "x" * 3000),
    "user": _text,
    "metadata": _one_of({}, {"a": "b"}, {"a": 1}),
    "use_beam_search": _one_of(True, False),
    "length_penalty": _one_of(0, 1, -3, 1e300),
    "pagelet": _one_of(
        {},
        {"seed": 5},
        {"prompt_token_ids": [[1, 2, 3]]},
        {"prompt_token_ids": [[99999]]},
        {"prompt_token_ids": []},
        {"prompt_token_ids": [[]]},
        {"journal": True},
        {"cache_salt": "x", "shared_prefix_tokens": 2**32 - 1},
        {"resume": {"created": 0, "answers": [{"begun": True, "token_ids": [5, 6]}]}},
        {"resume": {"created": 2**63 - 1, "answers": [{"begun": False, "token_ids": [49152]}]}},
        {"resume": {"created": 1, "answers": [{"begun": True, "token_ids": [], "finished": True}]}},
    ),
    "guided_json": _SCHEMA,
    "guided_regex": _one_of(*REGEXES),
    "guided_grammar": _one_of(*GRAMMARS),
    "guided_choice": _one_of(
        [], ["a"], ["a", "a"], [""], ["x" * 9000], [str(i) for i in range(3000)]
    ),
    "structured_outputs": lambda rng: rng.choice(
        (
            {"json": _SCHEMA(rng)},
            {"regex": rng.choice(REGEXES)},
            {"grammar": rng.choice(GRAMMARS)},
            {"structural_tag": rng.choice(TAGS)},
            {"choice": ["a", "b"], "regex": "a"},
            {},
        )
    ),
    "response_format": lambda rng: rng.choice(
        (
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA(rng)}},
            {"type": "json_schema"},
            rng.choice(TAGS),
        )
    ),
}
_STRUCTURED = (
    *("guided_json", "guided_json", "guided_regex", "guided_grammar"),
    *("structured_outputs", "response_format"),
)
_CHAT: dict[str, Choose] = _GENERATION | {
    "messages": _messages,
    "max_completion_tokens": _one_of(0, 1, 8, 10**9),
    "logprobs": _one_of(True, False),
    "top_logprobs": _one_of(0, 2, 20, 21, -1),
    "add_generation_prompt": _one_of(True, False),
    "continue_final_message": _one_of(True, False),
    "chat_template_kwargs": _one_of(
        {}, {"a": 1}, {"enable_thinking": False}, {"messages": 1}, {"": 1}
    ),
    "tools": _tools,
    "tool_choice": _one_of(
        *("auto", "none", "required", "any"),
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "\ud800"}},
    ),
    "parallel_tool_calls": _one_of(True, False),
    "thinking_budget": _one_of(0, 5, -1),
}
_PROMPT: Choose = _one_of(
    *("Hi", "", ["a", "b"], [1, 2, 3], [[1, 2], [3]], [], [[]], [49152], [0], ["a", 1], [["a"]]),
    *("word " * 9000, [5] * 8191, [5] * 8192, ["a"] * 40, "\0", "\ud800", [None], [-1], [2**32]),
)
_COMPLETION: dict[str, Choose] = _GENERATION | {
    "prompt": _PROMPT,
    "echo": _one_of(True, False),
    "logprobs": _one_of(0, 1, 5, 21, -1),
    "best_of": _one_of(0, 1, 2),
    "suffix": _one_of("", "x"),
}
_RESPONSE: dict[str, Choose] = {
    "input": _one_of(
        *("Hi", "", [], [{}]),
        [{"role": "user", "content": "Hi"}],
        [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        [
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ],
        [{"type": "function_call_output", "call_id": "c", "output": "1"}],
        [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "h"}]}],
    ),
    "instructions": _text,
    "max_output_tokens": _one_of(0, 1, 8, -1, 10**9),
    "text": lambda rng: {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA(rng)}},
    "tools": lambda rng: [{"type": "function", **tool["function"]} for tool in _tools(rng)],
    "tool_choice": _one_of("auto", "required", "none", {"type": "function", "name": "f"}),
    "top_logprobs": _one_of(0, 2, 21, -1),
    "include": _one_of([], ["message.output_text.logprobs"], ["x"]),
} | {
    name: _GENERATION[name]
    for name in ("stream", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "cache_salt")
}
_COUNT: dict[str, Choose] = {
    "messages": lambda rng: [
        {"role": rng.choice(("user", "assistant")), "content": _text(rng)}
        for _ in range(rng.randint(1, 3))
    ],
    "system": _one_of("", "Be brief.", [{"type": "text", "text": "x"}]),
    "tools": lambda rng: [
        {"name": "f", "input_schema": _SCHEMA(rng), "strict": rng.random() < 0.5}
    ],
    "tool_choice": _one_of({"type": "any"}, {"type": "auto"}, {"type": "tool", "name": "f"}, {}),
    "thinking": _one_of({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}),
    "output_config": lambda rng: {"format": {"type": "json_schema", "schema": _SCHEMA(rng)}},
}
_MESSAGE: dict[str, Choose] = _COUNT | {
    "max_tokens": _one_of(8, 8, 1, 0, -1, 10**9),
    "stop_sequences": _one_of([], ["a"], [""], ["\ud800"]),
    **{name: _GENERATION[name] for name in ("stream", "temperature", "top_p", "top_k", "seed")},
}
_POOLING: dict[str, Choose] = {
    name: _GENERATION[name] for name in ("truncate_prompt_tokens", "priority", "cache_salt")
}
_TOKENIZE: dict[str, Choose] = {
    "add_special_tokens": _one_of(True, False),
    "return_token_strs": _one_of(True, False),
    "chat_template_kwargs": _CHAT["chat_template_kwargs"],
}
_DOCUMENTS = _one_of(
    ["a", "b"], [], ["\ud800"], [{"text": "a"}], "a", ["a"] * 3000, ["word " * 9000]
)

ROUTES: tuple[tuple[str, dict[str, Choose], tuple[str, ...]], ...] = (
    ("/v1/chat/completions", _CHAT, ("messages",)),
    ("/v1/chat/completions", _CHAT, ("messages",)),
    ("/v1/chat/completions", _CHAT, ("messages", "tools")),
    ("/v1/completions", _COMPLETION, ("prompt",)),
    ("/v1/completions", _COMPLETION, ("prompt",)),
    ("/v1/chat/completions/render", _CHAT, ("messages",)),
    ("/v1/completions/render", _COMPLETION, ("prompt",)),
    ("/v1/responses", _RESPONSE, ("input",)),
    ("/v1/messages", _MESSAGE, ("messages",)),
    ("/v1/messages/count_tokens", _COUNT, ("messages",)),
    (
        "/v1/embeddings",
        _POOLING
        | {
            "input": _PROMPT,
            "dimensions": _one_of(1, 8, 0, 10**9),
            "encoding_format": _one_of("float", "base64", "x"),
        },
        ("input",),
    ),
    ("/v1/score", _POOLING | {"text_1": _text, "text_2": _DOCUMENTS}, ("text_1", "text_2")),
    (
        "/v1/rerank",
        _POOLING | {"query": _text, "documents": _DOCUMENTS, "top_n": _one_of(0, 1, -1, 10**9)},
        ("query", "documents"),
    ),
    ("/tokenize", _TOKENIZE | {"prompt": _text}, ("prompt",)),
    ("/tokenize", _TOKENIZE | {"messages": _messages}, ("messages",)),
    ("/detokenize", {"tokens": _one_of([], [1, 2], [49152], [-1], list(range(9000)))}, ("tokens",)),
    (
        "/v1/load_lora_adapter",
        {
            "lora_name": _text,
            "lora_path": _one_of("/", "/etc/passwd", "", "\0", "../..", "x" * 5000),
        },
        ("lora_name", "lora_path"),
    ),
    ("/v1/unload_lora_adapter", {"lora_name": _text}, ("lora_name",)),
)
_OTHERS = (
    *("/health", "/ready", "/metrics", "/version", "/v1/config", "/v1/models", "/v1/replica"),
    *("/v1/tokenizer", "/openapi.json", "/v1/models/sim", "/v1/models/%00", "/v1/models/%ff", "/"),
    *("/v1/models/../../x", "/v1/" + "a" * 9000, "//", "/v1/chat/completions?x=%ff", "/*", "/%"),
    *("/v1/chat/completions/", "/v1/models/" + "%F0%9F%98%80" * 50, "/v1/responses/resp_1"),
)


def to_json(value: Any) -> str:
    """With lone surrogates, and with what JSON does not have, left in."""
    match value:
        case _Raw():
            return str(value)
        case dict():
            pairs = (f"{json.dumps(key)}: {to_json(each)}" for key, each in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list():
            return "[" + ", ".join(map(to_json, value)) + "]"
        case _:
            return json.dumps(value)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in it."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:20])
        if isinstance(value, list)
        else ()
    )
    for key, each in items:
        yield value, key
        yield from _places(each)


def _spoil(rng: random.Random, body: dict[str, Any]) -> None:
    """Changes one thing somewhere in it."""
    places = list(_places(body))
    if not places:
        return
    container, key = rng.choice(places)
    value = copy.deepcopy(rng.choice(HOSTILE))
    match rng.randrange(4):
        case 0 if isinstance(container, dict):
            container[rng.choice(("x", "", "type", "name", "\ud800", "model"))] = value
        case 1:
            del container[key]
        case _:
            container[key] = value


def _body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    path, fields, needed = rng.choice(ROUTES)
    body = {name: fields[name](rng) for name in needed}
    if not path.endswith("adapter"):
        body["model"] = MODEL
    for name in ("max_tokens", "max_output_tokens"):
        if name in fields:
            body[name] = 8
    chosen = rng.sample(sorted(fields), min(len(fields), rng.choice((0, 0, 1, 1, 1, 2))))
    if "guided_json" in fields and rng.random() < 0.25:
        chosen.append(rng.choice(_STRUCTURED))
    for name in chosen:
        body[name] = fields[name](rng)
    body = copy.deepcopy(body)  # it shares nothing with the pools
    if rng.random() < 0.2:
        for _ in range(rng.randint(1, 2)):
            _spoil(rng, body)
    return path, body


def _broken_bytes(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return rng.choice(
        (
            data[:at],
            data[:at] + bytes(rng.randrange(256) for _ in range(4)) + data[at:],
            data[:at] + b"\xff\xfe\xc0\x80\xed\xa0\x80" + data[at:],
            b"\xef\xbb\xbf" + data,
            data.decode().encode("utf-16"),
            data + data,
            data.replace(b'"model"', b'"model": 5, "model"', 1),
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b"",
            b" " * 5000,
            b"null",
            b"[" + data + b"]",
            b'{"model": "sim", "prompt": ' + b"9" * 6000 + b"}",
            b'{"messages": [' + b"{}," * 30_000 + b"{}]}",
            bytes(rng.randrange(256) for _ in range(rng.randrange(200))),
        )
    )


def _headers(rng: random.Random) -> list[tuple[str, str]]:
    pool = (
        ("X-Request-Id", rng.choice(("", "a" * 3000, "é", "a b", "-", "\x7f"))),
        ("traceparent", rng.choice(("", "00-0-0-0", f"00-{'a' * 32}-{'b' * 16}-01", "x" * 999))),
        ("Authorization", rng.choice(("", "Bearer", "Bearer é", "Basic x", "Bearer " + "k" * 999))),
        ("Accept", rng.choice(("", "text/html", "é"))),
        ("Accept-Encoding", "gzip, deflate, br, *;q=0"),
        ("Expect", rng.choice(("100-continue", "x"))),
        ("If-None-Match", "*"),
        ("Origin", "null"),
        ("Cookie", "x" * 3000),
        ("X" * 300, "y"),
    )
    return rng.sample(pool, rng.choice((0, 0, 0, 1, 2)))


def requests(seed: int, count: int) -> Iterator[Sent]:
    """`count` of them."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        yield _request(rng)


def _request(rng: random.Random) -> Sent:
    path, body = _body(rng)
    data = to_json(body).encode()
    headers = [("Connection", "close"), *_headers(rng)]
    kind = rng.choices(
        ("sound", "bytes", "type", "framing", "method", "leaves"), (76, 8, 4, 4, 4, 4)
    )[0]
    json_type = ("Content-Type", "application/json")
    length = ("Content-Length", str(len(data)))
    match kind:
        case "bytes":
            data = _broken_bytes(rng, data)
            return Sent(
                "POST", path, (*headers, json_type, ("Content-Length", str(len(data)))), data
            )
        case "type":
            media, encoding = rng.choice(
                (
                    ("text/plain", ""),
                    ("", ""),
                    ("application/json; charset=utf-16", ""),
                    ("multipart/form-data; boundary=x", ""),
                    ("é", ""),
                    ("application/x-ndjson", ""),
                    ("application/json", "gzip"),
                    ("application/json", "identity"),
                    ("application/json", "br, gzip"),
                )
            )
            if "gzip" in encoding:
                data = gzip.compress(data, mtime=0)
            own = [("Content-Type", media), ("Content-Length", str(len(data)))]
            own += [("Content-Encoding", encoding)] if encoding else []
            return Sent("POST", path, (*headers, *own), data)
        case "framing":
            framing: list[tuple[str, str]] = rng.choice(
                (
                    [],
                    [("Content-Length", "-1")],
                    [("Content-Length", "abc")],
                    [("Content-Length", "9" * 30)],
                    [("Content-Length", str(len(data) // 2))],
                    [length, ("Content-Length", "3")],
                    [length, ("Transfer-Encoding", "chunked")],
                    [("Transfer-Encoding", "chunked")],
                    [("Transfer-Encoding", "x")],
                    [("Content-Length", str(len(data) + 50))],
                )
            )
            return Sent("POST", path, (*headers, json_type, *framing), data, is_framed=False)
        case "method":
            method = rng.choice(("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"))
            return Sent(method, rng.choice((*_OTHERS, path)), tuple(headers), b"")
        case "leaves" if "stream" in dict(body):
            return Sent("POST", path, (*headers, json_type, length), data, leaves_early=True)
        case _:
            return Sent("POST", path, (*headers, json_type, length), data)
