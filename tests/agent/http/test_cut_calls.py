"""Calls that must come and are cut off, by the bound on tokens or by a stop string."""

import json

import pytest

from .conftest import serving
from .thinking_llm import CALL, LOOK_UP, make_thinking_llm

ASK = [{"role": "user", "content": "Why?"}]
FUNCTION = {"name": "look_up", "parameters": LOOK_UP}
ARGUMENTS = json.dumps({"word": "a b"})
BEGIN = CALL.index(ARGUMENTS)
WHOLE = BEGIN + len(ARGUMENTS)
CUTS = [1, 12, 20, BEGIN, BEGIN + 1, WHOLE - 1, WHOLE, len(CALL) - 1]


@pytest.fixture(scope="module")
def server():
    with serving(make_thinking_llm) as server:
        yield server


def events_of(answer):
    lines = answer.text.split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def ask(server, path, end, stops, **fields):
    """The answer is cut after `end` characters, which are tokens of the fake engine."""
    server.llm.behaviour.text = CALL[:end] if stops else CALL
    answer = server.post(f"/v1/{path}", json={"model": "tiny", **fields})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("end", CUTS)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": FUNCTION}])
def test_chat(server, end, stops, choice):
    if choice != "required":
        choice = {"type": "function", "function": {"name": "look_up"}}
    asked = {
        "messages": ASK,
        "max_tokens": 500 if stops else end,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": choice,
    }
    whole = ask(server, "chat/completions", end, stops, **asked).json()["choices"][0]
    [call] = whole["message"]["tool_calls"]
    assert not whole["message"]["content"]
    assert call["function"]["name"] == "look_up"
    arguments = call["function"]["arguments"]
    assert ARGUMENTS.startswith(arguments)
    complete = "tool_calls" if arguments == ARGUMENTS else "stop"
    assert (arguments == ARGUMENTS) == (end >= WHOLE)
    assert whole["finish_reason"] == (complete if stops else "length")
    answer = ask(server, "chat/completions", end, stops, stream=True, **asked)
    choices = [each for event in events_of(answer) for each in event["choices"]]
    deltas = [choice["delta"] for choice in choices]
    assert not any(delta.get("content") for delta in deltas)
    parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", ())]
    assert [part["name"] for part in parts if "name" in part] == ["look_up"]
    assert "".join(part["arguments"] for part in parts) == arguments
    assert choices[-1]["finish_reason"] == whole["finish_reason"]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("end", CUTS)
def test_messages(server, end, stops):
    asked = {
        "messages": ASK,
        "max_tokens": 500 if stops else end,
        "tools": [{"name": "look_up", "input_schema": LOOK_UP}],
        "tool_choice": {"type": "any"},
    }
    whole = ask(server, "messages", end, stops, **asked).json()
    assert [block["type"] for block in whole["content"]] == ["tool_use"]
    complete = "tool_use" if end >= WHOLE else "end_turn"
    assert whole["stop_reason"] == (complete if stops else "max_tokens")
    events = events_of(ask(server, "messages", end, stops, stream=True, **asked))
    begun = [event["content_block"] for event in events if "content_block" in event]
    assert [(block["type"], block["name"]) for block in begun] == [("tool_use", "look_up")]
    reasons = [event["delta"].get("stop_reason") for event in events if "delta" in event]
    assert reasons[-1] == whole["stop_reason"]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("end", CUTS)
def test_responses(server, end, stops):
    asked = {
        "input": "Why?",
        "max_output_tokens": 500 if stops else end,
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "required",
    }
    whole = ask(server, "responses", end, stops, **asked).json()
    [call] = whole["output"]
    assert (call["type"], call["name"]) == ("function_call", "look_up")
    assert ARGUMENTS.startswith(call["arguments"])
    status = "completed" if stops and end >= WHOLE else "incomplete"
    assert whole["status"] == call["status"] == status
    reason = None if stops else "max_output_tokens"
    assert (whole["incomplete_details"] or {"reason": None})["reason"] == reason
    events = events_of(ask(server, "responses", end, stops, stream=True, **asked))
    assert events[-1]["type"] == f"response.{status}"
    assert events[-1]["response"]["output"][0]["arguments"] == call["arguments"]
    [done] = [event for event in events if event["type"] == "response.output_item.done"]
    assert (done["item"]["status"], done["item"]["type"]) == (status, "function_call")
