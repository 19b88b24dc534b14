"""`POST /v1/responses` with the official client."""

import json

import httpx
import openai
import pytest

from .conftest import DIRECT_AND_IMPATIENTLY_ROUTED, DIRECT_AND_ROUTED, serving
from .thinking_llm import LOOK_UP, make_thinking_llm

TEXT = "Hello, wörld!"
TOOL = {"type": "function", "name": "look_up", "parameters": LOOK_UP}


@pytest.fixture
def client(server):
    with server.openai(max_retries=0) as client:
        yield client


@pytest.fixture
def thinking():
    with serving(make_thinking_llm) as server:
        yield server


@pytest.fixture
def thinker(thinking):
    with thinking.openai(max_retries=0) as client:
        yield client


def respond(client, **options):
    return client.responses.create(**({"model": "tiny", "input": "Hi"} | options))


def prompt_of(server):
    return server.llm.tokenizer.decode(server.llm.seen[-1][1], False)


@DIRECT_AND_ROUTED
def test_a_text_is_answered(server, client):
    answer = respond(
        client,
        instructions="Be kind.",
        max_output_tokens=50,
        temperature=0,
        top_p=0.5,
        metadata={"a": "b"},
        extra_body={"seed": 3, "top_k": 2},
    )
    assert answer.output_text == TEXT
    assert answer.status == "completed"
    assert answer.id.startswith("resp_")
    assert answer.object == "response"
    assert answer.completed_at >= answer.created_at
    assert (answer.instructions, answer.temperature, answer.top_p) == ("Be kind.", 0, 0.5)
    assert (answer.metadata, answer.tools, answer.tool_choice) == ({"a": "b"}, [], "auto")
    assert answer.text.format.type == "text"
    [message] = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    prompt = "<system>Be kind.<user>Hi<assistant>"
    assert prompt_of(server) == prompt
    assert answer.usage.input_tokens == len(prompt)
    assert answer.usage.input_tokens_details.cached_tokens == len(prompt) // 16 * 16
    assert answer.usage.output_tokens == len(TEXT)
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.usage.total_tokens == len(prompt) + len(TEXT)
    sampling = server.llm.seen[0][2]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (50, 0, 0.5)
    assert (sampling.seed, sampling.top_k) == (3, 2)


def test_what_ends_at_the_bound_is_incomplete(client):
    answer = respond(client, max_output_tokens=5)
    assert answer.output_text == TEXT[:5]
    assert answer.status == answer.output[0].status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_a_list_is_a_conversation(thinking, thinker):
    first = respond(thinker, tools=[TOOL])
    call = first.output[-1]
    history = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        *first.output,
        {"type": "function_call_output", "call_id": call.call_id, "output": "found"},
        {"type": "message", "role": "assistant", "content": "Well."},
        {"role": "user", "content": "And?"},
    ]
    respond(thinker, input=history)
    messages, options = thinking.llm.rendered[-1]
    assert options == {"add_generation_prompt": True}
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "tool", "assistant", "user")
    ]
    assert messages[2]["reasoning_content"] == "Let me see."
    assert messages[2]["content"].strip() == "I look it up."
    [told] = messages[2]["tool_calls"]
    assert told["id"] == messages[3]["tool_call_id"] == call.call_id
    assert json.loads(told["function"]["arguments"]) == {"word": "a b"}
    assert messages[3]["content"] == "found"


def test_thinking_text_and_calls_are_items(thinking, thinker):
    answer = respond(thinker, tools=[TOOL], parallel_tool_calls=False)
    reasoning, message, call = answer.output
    assert reasoning.content[0].text == "Let me see."
    assert message.content[0].text.strip() == "I look it up."
    assert (call.name, json.loads(call.arguments)) == ("look_up", {"word": "a b"})
    assert call.call_id.startswith("call_")
    assert answer.parallel_tool_calls is False
    assert answer.tools[0].name == "look_up"
    tokens = answer.usage.output_tokens_details.reasoning_tokens
    assert tokens == len("\nLet me see.\n") + len("</think>") - 1  # a token a character
    [tool] = thinking.llm.rendered[0][1]["tools"]
    assert tool["function"]["parameters"] == LOOK_UP


ITEM = ["response.output_item.added", "response.output_item.done"]


def _kinds(events):
    """Types of events, each run of the same as one."""
    kinds = []
    for event in events:
        if not kinds or kinds[-1] != event.type:
            kinds.append(event.type)
    return kinds


def test_a_stream_has_the_official_events(thinking, thinker):
    events = list(respond(thinker, tools=[TOOL], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert _kinds(events) == [
        "response.created",
        "response.in_progress",
        *("response.output_item.added", "response.content_part.added"),
        *("response.reasoning_text.delta", "response.reasoning_text.done"),
        *("response.content_part.done", "response.output_item.done"),
        *("response.output_item.added", "response.content_part.added"),
        *("response.output_text.delta", "response.output_text.done"),
        *("response.content_part.done", "response.output_item.done"),
        "response.output_item.added",
        *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
        "response.output_item.done",
        "response.completed",
    ]
    whole = events[-1].response
    assert [event.item for event in events if event.type == ITEM[1]] == whole.output
    begun = [event.item for event in events if event.type == ITEM[0]]
    assert [item.id for item in begun] == [item.id for item in whole.output]
    assert begun[0].content == begun[1].content == []
    assert begun[2].arguments == ""
    for event in events:
        if hasattr(event, "item_id"):
            assert event.item_id == whole.output[event.output_index].id
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert whole.output[1].content[0].text == text
    again = respond(thinker, tools=[TOOL])
    assert [item.type for item in again.output] == [item.type for item in whole.output]
    assert again.output_text == whole.output_text
    assert again.usage == whole.usage


def test_the_clients_own_accumulator_takes_the_stream(thinker):
    with thinker.responses.stream(model="tiny", input="Hi", tools=[TOOL]) as stream:
        snapshots = [
            event.snapshot for event in stream if event.type == "response.output_text.delta"
        ]
        final = stream.get_final_response()
    assert snapshots[-1].strip() == "I look it up."
    assert final.output[0].content[0].text == "Let me see."
    assert json.loads(final.output[2].arguments) == {"word": "a b"}


def test_a_stream_that_ends_at_the_bound_is_incomplete(client):
    *_, done, last = respond(client, stream=True, max_output_tokens=4)
    assert done.item.status == "incomplete"
    assert last.type == "response.incomplete"
    assert last.response.output_text == TEXT[:4]
    assert last.response.incomplete_details.reason == "max_output_tokens"


@DIRECT_AND_ROUTED
def test_a_stream_whose_engine_dies_fails(server, client):
    server.llm.behaviour.die_after = 3
    *_, last = respond(client, stream=True)
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error.code == "server_error"
    assert last.response.error.pagelet_code == "engine_unavailable"
    assert last.response.output[0].status == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client, stream):
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    answer = respond(client, stream=stream, **options)
    if stream:
        events = list(answer)
        answer = events[-1].response
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        assert "".join(entry.token for event in deltas for entry in event.logprobs) == TEXT
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(entry.token for entry in logprobs) == TEXT
    assert logprobs[0].top_logprobs[0].token == "a"
    assert answer.top_logprobs == 1


def test_what_vllm_adds_reaches_the_engine(server, client):
    added = {
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "min_tokens": 2,
        "stop_token_ids": [7],
        "stop": ["x"],
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 2.0},
        "skip_special_tokens": False,
        "top_k": 3,
        "min_p": 0.5,
        "seed": 9,
    }
    assert respond(client, extra_body=added).output_text == TEXT
    sampling = server.llm.seen[-1][2]
    assert {name: getattr(sampling, name) for name in added} == added | {"logit_bias": {5: 2.0}}


def test_reasoning_can_be_left_out(thinker):
    kinds = [item.type for item in respond(thinker, tools=[TOOL]).output]
    assert kinds[0] == "reasoning"
    left = respond(thinker, tools=[TOOL], extra_body={"include_reasoning": False})
    assert [item.type for item in left.output] == kinds[1:]


def test_the_sampling_in_force_is_told(client):
    told = respond(client)
    assert (told.temperature, told.top_p) == (0.5, 0.75)  # the model's own
    asked = respond(client, temperature=0, top_p=1)
    assert (asked.temperature, asked.top_p) == (0, 1)


REFUSED = [
    pytest.param({"previous_response_id": "resp_1"}, "previous_response_id", id="state"),
    pytest.param({"conversation": "conv_1"}, "conversation", id="conversation"),
    pytest.param({"background": True}, "background", id="background"),
    pytest.param({"reasoning": {"effort": "more"}}, "reasoning.effort", id="effort"),
    pytest.param({"include": ["everything"]}, "include", id="include"),
    pytest.param({"truncation": "most"}, "truncation", id="truncation"),
    pytest.param({"tools": [{"type": "web_search"}]}, "tools", id="tool"),
    pytest.param({"tools": [TOOL, TOOL]}, "tools", id="twice"),
    pytest.param({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice", id="choice"),
    pytest.param({"tool_choice": "required"}, "tool_choice", id="no tools"),
    pytest.param({"input": []}, "input", id="empty"),
    pytest.param({"input": [{"type": "item_reference", "id": "x"}]}, "input", id="reference"),
    pytest.param(
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content",
        id="image",
    ),
    pytest.param({"input": [{"role": "user"}]}, "input[0].content", id="no content"),
    pytest.param({"max_output_tokens": 0}, "max_output_tokens", id="tokens"),
    pytest.param({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", id="schema"),
    pytest.param({"frobnicate": 1}, "frobnicate", id="unknown"),
]


@pytest.mark.parametrize(("extra", "param"), REFUSED)
def test_what_is_not_served_is_named(client, extra, param):
    with pytest.raises(openai.BadRequestError) as caught:
        respond(client, extra_body=extra)
    assert caught.value.param == param
    if param == "previous_response_id":
        assert "keeps no responses" in str(caught.value)


def test_the_tool_that_is_not_served_is_named(client):
    with pytest.raises(openai.BadRequestError, match="'web_search'"):
        respond(client, tools=[{"type": "web_search"}])


@DIRECT_AND_IMPATIENTLY_ROUTED
def test_other_errors_are_as_elsewhere(server, client):
    with pytest.raises(openai.NotFoundError):
        respond(client, model="gpt")
    for data in (b"", b"{", b"[]", b"\xff", b'{"model": "tiny", "input": NaN}'):
        response = httpx.post(server.url + "/v1/responses", content=data, timeout=60)
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
    server.llm.is_ready = False
    with pytest.raises(openai.InternalServerError):
        respond(client)
    assert server.state.admission.in_flight == 0
