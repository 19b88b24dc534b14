"""Anthropic's API with its official client."""

import json

import anthropic
import httpx
import pytest

from .conftest import DIRECT_AND_IMPATIENTLY_ROUTED, DIRECT_AND_ROUTED, serving
from .thinking_llm import LOOK_UP, make_thinking_llm

TEXT = "Hello, wörld!"
MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "look_up", "description": "Looks up.", "input_schema": LOOK_UP}


def client_of(server, **options):
    options = {"api_key": "none", "max_retries": 0} | options
    return anthropic.Anthropic(base_url=server.url, **options)


@pytest.fixture
def client(server):
    with client_of(server) as client:
        yield client


@pytest.fixture
def thinking():
    with serving(make_thinking_llm) as server:
        yield server


@pytest.fixture
def thinker(thinking):
    with client_of(thinking) as client:
        yield client


def ask(client, **options):
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 500} | options
    return client.messages.create(**settings)


@DIRECT_AND_ROUTED
def test_a_message_is_answered(server, client):
    answer = ask(
        client,
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        extra_body={"seed": 5, "temperature": 0.5, "top_k": 3, "top_p": 0.9},
        stop_sequences=["x"],
        metadata={"user_id": "u"},
    )
    assert answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == TEXT
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    prompt = server.llm.tokenizer.encode("<system>Be kind.<user>Hi<assistant>", False)
    _, ids, sampling, _ = server.llm.seen[0]
    assert ids == prompt
    cached = len(prompt) // 16 * 16
    assert answer.usage.cache_read_input_tokens == cached
    assert answer.usage.input_tokens == len(prompt) - cached
    assert answer.usage.output_tokens == len(TEXT)
    assert (sampling.max_tokens, sampling.seed, sampling.stop) == (500, 5, ["x"])
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 3, 0.9)


def test_the_bound_on_tokens(client):
    answer = ask(client, max_tokens=5)
    assert answer.content[0].text == TEXT[:5]
    assert answer.stop_reason == "max_tokens"


def test_an_answer_begun_by_the_client_goes_on(server, client):
    ask(client, messages=[*MESSAGES, {"role": "assistant", "content": "Hel"}])
    prompt = server.llm.tokenizer.decode(server.llm.seen[0][1], False)
    assert prompt == "<user>Hi<assistant>Hel"


def test_a_call_and_its_result(thinking, thinker):
    first = ask(thinker, tools=[TOOL], thinking={"type": "enabled", "budget_tokens": 1024})
    thought, text, call = first.content
    assert first.stop_reason == "tool_use"
    assert (thought.type, thought.thinking) == ("thinking", "Let me see.")
    assert text.text.strip() == "I look it up."
    assert (call.name, call.input) == ("look_up", {"word": "a b"})
    messages, options = thinking.llm.rendered[0]
    assert options["enable_thinking"] is True
    assert options["tools"][0]["function"]["parameters"] == LOOK_UP
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "found"}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    ask(thinker, messages=history, tools=[TOOL])
    messages, _ = thinking.llm.rendered[1]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[1]["reasoning_content"] == "Let me see."
    [told] = messages[1]["tool_calls"]
    assert json.loads(told["function"]["arguments"]) == {"word": "a b"}
    assert told["id"] == messages[2]["tool_call_id"] == call.id
    assert (messages[2]["content"], messages[3]["content"]) == ("found", "And?")


def test_thinking_can_be_left_out(thinking, thinker):
    answer = ask(thinker, thinking={"type": "disabled"})
    assert thinking.llm.rendered[0][1]["enable_thinking"] is False
    assert {block.type for block in answer.content} == {"text"}


def test_a_stream_has_the_official_events(thinking, thinker):
    events = list(ask(thinker, tools=[TOOL], stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert events[0].message.content == []
    assert events[0].message.usage.output_tokens == 0
    open_block, begun = None, []
    for event in events[1:-2]:
        if event.type == "content_block_start":
            assert open_block is None
            open_block = event.index
            begun.append(event.content_block)
        elif event.type == "content_block_stop":
            assert event.index == open_block
            open_block = None
        else:
            assert event.type == "content_block_delta"
            assert event.index == open_block
    assert [block.type for block in begun] == ["thinking", "text", "tool_use"]
    assert begun[2].input == {}
    assert events[-2].delta.stop_reason == "tool_use"
    whole = ask(thinker, tools=[TOOL])
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    assert events[-2].usage.input_tokens == whole.usage.input_tokens


def test_the_clients_own_accumulator_takes_the_stream(thinker):
    settings = {"model": "tiny", "messages": MESSAGES, "max_tokens": 500, "tools": [TOOL]}
    with thinker.messages.stream(**settings) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text.strip() == "I look it up."
    assert final.content[0].thinking == "Let me see."
    assert final.content[2].input == {"word": "a b"}


def test_a_call_that_is_cut_off_has_what_there_is_of_it(thinking, thinker):
    whole = thinking.llm.behaviour.text
    answer = ask(thinker, tools=[TOOL], max_tokens=whole.index('b"}'))
    assert answer.stop_reason == "max_tokens"
    assert all(block.input in ({}, {"word": "a "}) for block in answer.content[2:])


def test_tokens_are_counted(server, client):
    count = client.messages.count_tokens(model="tiny", messages=MESSAGES, system="Be kind.")
    assert count.input_tokens == len("<system>Be kind.<user>Hi<assistant>")
    assert not server.llm.seen


REFUSED = [
    pytest.param({"max_tokens": None}, "max_tokens", id="tokens missing"),
    pytest.param({"max_tokens": 0}, "max_tokens", id="no tokens"),
    pytest.param({"messages": []}, "messages", id="empty"),
    pytest.param({"messages": [{"role": "system", "content": "x"}]}, "role", id="role"),
    pytest.param(
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "'image'",
        id="image",
    ),
    pytest.param({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "'bash_2", id="built-in"),
    pytest.param({"tool_choice": {"type": "any"}}, "tool_choice", id="no tools"),
    pytest.param({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "name", id="no name"),
    pytest.param({"output_config": {"effort": "more"}}, "effort", id="effort"),
    pytest.param({"container": "c"}, "container", id="container"),
    pytest.param({"frobnicate": 1}, "frobnicate", id="unknown"),
]


@pytest.mark.parametrize(("extra", "named"), REFUSED)
def test_what_is_not_served_is_named(server, client, extra, named):
    with pytest.raises(anthropic.BadRequestError, match=named) as caught:
        ask(client, extra_body=extra)
    body = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    server.wait_until(lambda: server.state.admission.in_flight == 0)


@DIRECT_AND_ROUTED
def test_broken_bodies_get_the_right_shape(server):
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        for data in (b"", b"{", b"[]", b"\xff", b"{}"):
            response = httpx.post(server.url + path, content=data, timeout=60)
            assert response.status_code == 400
            assert response.json()["type"] == "error"
            assert response.json()["error"]["type"] == "invalid_request_error"
    assert httpx.get(server.url + "/v1/messages", timeout=60).json()["type"] == "error"


@DIRECT_AND_IMPATIENTLY_ROUTED
def test_other_errors_are_the_clients_own(server, client):
    with pytest.raises(anthropic.NotFoundError, match="'tiny'") as missing:
        ask(client, model="claude")
    assert missing.value.body["error"]["type"] == "not_found_error"
    server.llm.behaviour.die_after = 2
    with pytest.raises(anthropic.APIStatusError, match="died") as broken:
        list(ask(client, stream=True))
    assert broken.value.body["error"]["type"] == "overloaded_error"
    server.llm.is_ready = False
    with pytest.raises(anthropic.InternalServerError) as down:
        ask(client)
    assert down.value.status_code == 503


def test_keys_in_x_api_key(serve):
    server = serve(api_keys=["secret"])
    with client_of(server, api_key="secret") as client:
        assert ask(client).content[0].text == TEXT
    with (
        client_of(server, api_key="wrong") as client,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        ask(client)
    assert caught.value.body["error"]["type"] == "authentication_error"
