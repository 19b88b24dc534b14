"""Errors name the field that the client sent, where the engine knows another name of it."""

import re

import httpx
import pytest

from .real_engine import replica, simulated

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
NO_SCHEMA = {"type": 5}
FUNCTION = {"name": "f", "parameters": NO_SCHEMA}
BARE = {"prompt": "Hi"}
ASKED = {"input": "Hi"}
TURN = CHAT | {"max_tokens": 5}
PROMPT_TOO_LONG = r"prompt is too long: (\d+) tokens > (\d+) maximum"
TOGETHER_TOO_LONG = r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)"


@pytest.fixture(scope="module")
def server():
    with replica(simulated(), response_store=1 << 22) as server:
        yield server


def refused(server, path, body):
    response = server.post(path, json={"model": "tiny"} | body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


RENAMED = [
    ("/completions", BARE | {"best_of": 129}, "best_of"),
    ("/completions", BARE | {"best_of": 10**15}, "best_of"),
    ("/completions", {"prompt": ["Hi"] * 20, "best_of": 100}, "best_of"),
    ("/completions", {"prompt": ["Hi"] * 20, "n": 100}, "n"),
    ("/completions", BARE | {"n": 10**15}, "n"),
    ("/completions", BARE | {"n": 0}, "n"),
    ("/completions", BARE | {"use_beam_search": True, "n": 99, "best_of": 99}, "best_of"),
    ("/completions/render", BARE | {"best_of": 129}, "best_of"),
    ("/chat/completions", CHAT | {"n": 0}, "n"),
    ("/chat/completions", CHAT | {"max_tokens": -1}, "max_tokens"),
    ("/chat/completions", CHAT | {"max_completion_tokens": -1}, "max_completion_tokens"),
    ("/chat/completions", CHAT | {"max_completion_tokens": 10**6}, "max_completion_tokens"),
    ("/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 50}, "top_logprobs"),
    ("/chat/completions", CHAT | {"thinking_budget": 5}, "thinking_budget"),
    ("/chat/completions", CHAT | {"thinking_token_budget": 5}, "thinking_token_budget"),
    ("/chat/completions", CHAT | {"use_beam_search": True, "guided_regex": "a"}, "guided_regex"),
    ("/chat/completions", CHAT | {"guided_json": NO_SCHEMA}, "guided_json"),
    ("/chat/completions", CHAT | {"guided_choice": []}, "guided_choice"),
    ("/chat/completions", CHAT | {"guided_grammar": ""}, "guided_grammar"),
    ("/chat/completions", CHAT | {"guided_regex": ""}, "guided_regex"),
    ("/chat/completions", CHAT | {"structured_outputs": {"regex": ""}}, "structured_outputs"),
    ("/chat/completions", CHAT | {"functions": [FUNCTION]}, "functions"),
    (
        "/chat/completions",
        CHAT | {"tools": [{"type": "function", "function": FUNCTION | {"strict": True}}]},
        "tools[0].function.parameters",
    ),
    ("/chat/completions/render", CHAT | {"max_completion_tokens": -1}, "max_completion_tokens"),
    ("/chat/completions/render", CHAT | {"logprobs": True, "top_logprobs": 50}, "top_logprobs"),
    ("/responses", ASKED | {"max_output_tokens": -1}, "max_output_tokens"),
    ("/responses", ASKED | {"top_logprobs": 50}, "top_logprobs"),
    (
        "/responses",
        ASKED | {"text": {"format": {"type": "json_schema", "name": "s", "schema": NO_SCHEMA}}},
        "text.format",
    ),
    (
        "/responses",
        ASKED | {"tools": [{"type": "function"} | FUNCTION], "tool_choice": "required"},
        "tools[0].parameters",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), RENAMED)
def test_the_name_that_was_sent_is_told(server, path, body, param):
    error = refused(server, f"/v1{path}", body)
    assert error["param"] == param
    if "length" not in error["code"]:
        assert error["message"].startswith((f"{param} ", f"{param}:", f"'{param}' ")) or (
            f"'{param}'" in error["message"]
        )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"tools": [{"name": "f", "input_schema": NO_SCHEMA}], "tool_choice": {"type": "any"}},
            "tools[0].input_schema: ",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": NO_SCHEMA}}},
            "output_config.format: ",
        ),
        ({"max_tokens": -1}, "max_tokens must be at least 1"),
    ],
)
def test_messages_tell_their_own_names(server, body, words):
    assert refused(server, "/v1/messages", TURN | body)["message"].startswith(words)


def test_agents_read_of_messages_how_much_is_too_long(server):
    text = "word " * 10_000
    for words in (text, text * 50):  # counted, and too long to be
        turn = TURN | {"messages": [{"role": "user", "content": words}]}
        told = refused(server, "/v1/messages", turn)["message"]
        found, most = map(int, re.match(PROMPT_TOO_LONG, told).groups())
        assert found > most
    told = refused(server, "/v1/messages", TURN | {"max_tokens": 32_000})["message"]
    found, asked, limit = map(int, re.match(TOGETHER_TOO_LONG, told).groups())
    assert (asked, limit) == (32_000, most)
    fits = {"model": "tiny"} | TURN | {"max_tokens": limit - found}
    assert server.post("/v1/messages", json=fits).status_code == 200


@pytest.mark.parametrize("asked", [{"messages": "Hi"}, {"prompt": ""}])
def test_texts_without_end_are_named_as_they_were_sent(server, asked):
    [(name, _)] = asked.items()
    text = "word " * 500_000
    given = text if name == "prompt" else [{"role": "user", "content": text}]
    assert refused(server, "/tokenize", {name: given})["param"] == name


def test_bounds_are_told_without_names_that_nobody_sent(server):
    bounded = ASKED | {"max_output_tokens": 5, "min_tokens": 9}
    error = refused(server, "/v1/responses", bounded)
    assert error["param"] == "min_tokens"
    assert "max_tokens" not in error["message"]
    assert "at most 5" in error["message"]


COUNTED_NOT = [
    {"max_output_tokens": -1},
    {"max_output_tokens": 0},
    {"temperature": 3},
    {"top_p": -1},
    {"top_logprobs": 50},
    {"stop": list(map(str, range(17)))},
    {"stop_token_ids": [10**6]},
    {"logit_bias": {"999999": 1}},
    {"min_tokens": 9, "max_output_tokens": 5},
    {"cache_salt": ""},
    {"priority": 5},
    {"text": {"format": {"type": "json_schema", "name": "s", "schema": NO_SCHEMA}}},
    {"tools": [{"type": "function", "strict": True} | FUNCTION]},
    {"tools": [{"type": "function"} | FUNCTION], "tool_choice": "required"},
]


@pytest.mark.parametrize("body", COUNTED_NOT, ids=lambda body: " ".join(body))
def test_what_would_not_be_answered_is_not_counted(server, body):
    error = refused(server, "/v1/responses", ASKED | body)
    assert refused(server, "/v1/responses/input_tokens", ASKED | body) == error


def test_what_would_be_answered_is_counted(server):
    asked = ASKED | {"model": "tiny", "max_output_tokens": 5, "temperature": 1.5, "stop": "x"}
    answer, count = (
        server.post(path, json=asked).json()
        for path in ("/v1/responses", "/v1/responses/input_tokens")
    )
    assert answer["usage"]["input_tokens"] == count["input_tokens"]


def conversation(turns, last="And now?"):
    items = [
        {"role": role, "content": "word " * 900}
        for _ in range(turns)
        for role in ("user", "assistant")
    ]
    return [*items, {"role": "user", "content": last}]


TRUNCATION = "or give 'truncation': \"auto\""


@pytest.mark.parametrize(
    ("body", "helps"),
    [
        ({"input": conversation(6)}, True),
        ({"input": conversation(6), "truncation": "disabled"}, True),
        ({"input": conversation(1), "max_output_tokens": 7000}, True),
        ({"input": conversation(600)}, True),  # too long to be tokenized
        ({"input": conversation(6, last="word " * 9000)}, False),
        ({"input": conversation(6, last="word " * 9000), "truncation": "auto"}, False),
        ({"input": conversation(0, last="word " * 9000)}, False),
        ({"input": conversation(6), "max_output_tokens": 8192}, False),
    ],
)
def test_truncation_is_named_where_it_helps(server, body, helps):
    error = refused(server, "/v1/responses", body)
    assert error["code"] == "context_length_exceeded"
    assert (TRUNCATION in error["message"]) == helps
    assert error["param"] in ("input", "max_output_tokens")
    if helps:
        answer = server.post(
            "/v1/responses",
            json={"model": "tiny", "max_output_tokens": 5} | body | {"truncation": "auto"},
            timeout=60,
        )
        assert answer.status_code == httpx.codes.OK, answer.text


def test_it_is_named_too_where_tokens_are_counted(server):
    body = {"input": conversation(600)}
    assert TRUNCATION in refused(server, "/v1/responses/input_tokens", body)["message"]
