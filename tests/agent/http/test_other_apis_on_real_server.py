"""Responses and messages from a real server with a real vocabulary: whatever a client sends, it is
answered below 500, in the shape of the API that was asked.

PAGELET_FUZZ_EXAMPLES sets the number of random requests.
"""

import json
import os

import anthropic
import httpx
import jsonschema
import openai
import pydantic
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from .real_engine import replica, simulated

EXAMPLES = int(os.environ.get("PAGELET_FUZZ_EXAMPLES", "300"))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server():
    with replica(simulated(), tool_call_parser="hermes", response_store=1 << 16) as server:
        yield server


@pytest.fixture
def client(server):
    with server.openai(max_retries=0) as client:
        yield client


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="-", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


def test_a_response_is_what_chat_answers(client):
    settings = {"model": "tiny", "temperature": 1, "extra_body": {"seed": 7}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    chat = client.chat.completions.create(messages=messages, max_tokens=40, **settings)
    asked = {"input": "Go.", "instructions": "Be brief.", "max_output_tokens": 40} | settings
    whole = client.responses.create(**asked)
    assert whole.output_text == chat.choices[0].message.content
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    assert whole.usage.input_tokens_details.cached_tokens > 0
    events = list(client.responses.create(stream=True, **asked))
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage == whole.usage


def test_a_message_is_what_chat_answers(client, claude):
    messages = [{"role": "user", "content": "Go."}]
    extra = {"seed": 7, "temperature": 1}
    chat = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=40, extra_body=extra
    )
    asked = {"model": "tiny", "messages": messages, "max_tokens": 40, "extra_body": extra}
    whole = claude.messages.create(**asked)
    assert whole.content[0].text == chat.choices[0].message.content
    assert whole.stop_reason == "max_tokens"
    usage = whole.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens
    counted = claude.messages.count_tokens(model="tiny", messages=messages)
    assert counted.input_tokens == chat.usage.prompt_tokens
    with claude.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        assert stream.get_final_message().usage.output_tokens == usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_schemas_and_forced_calls_of_responses(client, stream):
    def ask(**asked):
        answer = client.responses.create(
            model="tiny", input="Go.", max_output_tokens=500, stream=stream, **asked
        )
        return list(answer)[-1].response if stream else answer

    text = ask(text={"format": {"type": "json_schema", "name": "person", "schema": PERSON}})
    jsonschema.validate(json.loads(text.output_text), PERSON)
    tool = {"type": "function", "name": "save", "parameters": PERSON}
    for choice in ("required", {"type": "function", "name": "save"}):
        [call] = ask(tools=[tool], tool_choice=choice, parallel_tool_calls=False).output
        assert (call.type, call.name, call.status) == ("function_call", "save", "completed")
        jsonschema.validate(json.loads(call.arguments), PERSON)


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str
    age: int


def test_the_client_parses_what_it_asked_for(client):
    asked = {"model": "tiny", "input": "Go.", "max_output_tokens": 2000, "extra_body": {"seed": 1}}
    whole = client.responses.parse(text_format=Person, **asked)
    assert isinstance(whole.output_parsed, Person)
    with client.responses.stream(text_format=Person, **asked) as stream:
        assert stream.until_done().get_final_response().output_parsed == whole.output_parsed


@pytest.mark.parametrize("stream", [False, True])
def test_schemas_and_forced_calls_of_messages(claude, stream):
    def ask(**asked):
        asked |= {"model": "tiny", "messages": [{"role": "user", "content": "Go."}]}
        if not stream:
            return claude.messages.create(max_tokens=500, **asked)
        with claude.messages.stream(max_tokens=500, **asked) as events:
            return events.get_final_message()

    text = ask(output_config={"format": {"type": "json_schema", "schema": PERSON}})
    jsonschema.validate(json.loads(text.content[0].text), PERSON)
    tool = {"name": "save", "input_schema": PERSON}
    for choice in ({"type": "any"}, {"type": "tool", "name": "save"}):
        answer = ask(tools=[tool], tool_choice=choice | {"disable_parallel_tool_use": True})
        [call] = answer.content
        assert (call.type, call.name, answer.stop_reason) == ("tool_use", "save", "tool_use")
        jsonschema.validate(call.input, PERSON)


def test_too_much_is_refused_under_the_clients_own_names(client, claude):
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model="tiny", input="word " * 20_000)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError) as hot:
        client.responses.create(model="tiny", input="Go.", temperature=9)
    assert hot.value.param == "temperature"
    bad = {"type": "json_schema", "name": "x", "schema": {"not": {}}}
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.responses.create(model="tiny", input="Go.", text={"format": bad})
    assert unsupported.value.param == "text.format"
    with pytest.raises(anthropic.BadRequestError, match="20"):
        claude.messages.create(
            model="tiny", max_tokens=5, messages=[{"role": "user", "content": "word " * 20_000}]
        )


# Fuzzing

texts = st.text(max_size=12)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def _object(required, /, **optional):
    return st.fixed_dictionaries(required, optional=optional)


def _kind(kind, /, **fields):
    return _object({"type": st.just(kind)}, **fields)


texts_or_junk = texts | anything
input_parts = st.lists(
    _kind("input_text", text=texts) | _kind("output_text", text=texts) | _kind("input_image"),
    max_size=2,
)
input_items = st.lists(
    _object(
        {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool"])},
        content=texts | input_parts,
    )
    | _kind("function_call", call_id=texts, name=texts, arguments=texts, id=texts)
    | _kind("function_call_output", call_id=texts, output=texts_or_junk)
    | _kind("reasoning", summary=st.just([]), content=anything)
    | _kind("item_reference", id=texts),
    max_size=3,
)
names = st.sampled_from(["f", "g", "?"])
RESPONSE = {
    "input": texts | input_items | anything,
    "instructions": texts_or_junk,
    "max_output_tokens": st.integers(-1, 20),
    "temperature": st.floats(0, 3),
    "top_p": st.floats(0, 1.5),
    "top_logprobs": st.integers(-1, 21),
    "include": st.lists(st.sampled_from(["message.output_text.logprobs", "x"]), max_size=2),
    "text": _object({}, format=_kind("json_schema", name=texts, schema=anything) | anything),
    "tools": st.lists(
        _kind("function", name=names, parameters=anything) | _kind("mcp"), max_size=2
    ),
    "tool_choice": st.sampled_from(["auto", "none", "required", "x"])
    | _kind("function", name=names),
    "parallel_tool_calls": st.booleans(),
    "reasoning": anything | _object({}, effort=st.sampled_from(["none", "high", "x"])),
    "store": st.booleans(),
    "background": st.booleans(),
    "previous_response_id": texts,
    "service_tier": texts,
    "timeout": st.floats(60, 2e5),
    "stream": st.booleans(),
    "stop": texts,
    "metadata": anything,
    "chat_template_kwargs": st.dictionaries(texts, anything, max_size=2),
}
blocks = st.lists(
    _kind("text", text=texts)
    | _kind("tool_use", id=texts, name=texts, input=st.dictionaries(texts, anything, max_size=2))
    | _kind("tool_result", tool_use_id=texts, content=texts_or_junk)
    | _kind("thinking", thinking=texts, signature=texts)
    | _kind("image"),
    max_size=3,
)
MESSAGE = {
    "messages": st.lists(
        _object({"role": st.sampled_from(["user", "assistant"])}, content=texts | blocks),
        max_size=3,
    )
    | anything,
    "system": texts_or_junk,
    "max_tokens": st.integers(-1, 20),
    "temperature": st.floats(0, 3),
    "top_k": st.integers(-2, 100),
    "stop_sequences": st.lists(texts, max_size=3),
    "tools": st.lists(
        _object({"name": names, "input_schema": anything}, type=st.sampled_from(["custom", "x"])),
        max_size=2,
    ),
    "tool_choice": _kind("any") | _kind("tool", name=names) | _kind("auto") | anything,
    "thinking": _kind("enabled", budget_tokens=st.integers()) | _kind("disabled") | anything,
    "output_config": _object({}, format=_kind("json_schema", schema=anything)),
    "stream": st.booleans(),
    "metadata": anything,
}
SOUND = {
    "/v1/responses": {"input": "Go.", "max_output_tokens": 8},
    "/v1/messages": {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 8},
}


@st.composite
def requests(draw):
    """A path and a body that is mostly right, so that it gets far."""
    path, fields = draw(st.sampled_from([("/v1/responses", RESPONSE), ("/v1/messages", MESSAGE)]))
    body = {"model": "tiny"} | SOUND[path]
    for name in draw(st.sets(st.sampled_from(sorted(fields)), max_size=4)):
        body[name] = draw(anything if draw(st.integers(0, 9)) == 0 else fields[name])
    if path == "/v1/messages" and draw(st.integers(0, 4)) == 0:
        path += "/count_tokens"
        body = {name: body[name] for name in body if name in ("model", "messages", "system")}
    return path, body


@settings(
    max_examples=EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(requests())
def test_no_body_gives_a_5xx(http, sent):
    path, body = sent
    data = json.dumps(body).encode()
    response = http.post(path, content=data, headers={"Content-Type": "application/json"})
    event(f"{path} {response.status_code}")
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert error["type"] in ("invalid_request_error", "request_too_large")
        assert ("type" in response.json()) == path.startswith("/v1/messages")
    elif body.get("stream"):
        last = response.text.rstrip().split("\n\n")[-1]
        assert last.startswith(
            ("event: message_stop", "event: response.completed", "event: response.incomplete")
        )


def test_nothing_is_left_running(server):
    server.wait_until(lambda: server.state.admission.in_flight == 0)
    server.wait_until(lambda: server.state.open_requests == 0)
    assert server.get("/health").status_code == 200
