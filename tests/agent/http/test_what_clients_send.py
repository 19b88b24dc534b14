"""Requests that official clients and agents send as a matter of course, beyond the plain ones: they
are answered, and mean what they mean elsewhere."""

import json

import pytest
import torch

from pagelet.engine.sampling_request import RequestedSampling, SamplingBuilder
from pagelet.kernels.sample import sample

from .conftest import DIRECT_AND_ROUTED, serving
from .thinking_llm import LOOK_UP, make_thinking_llm

ASK = [{"role": "user", "content": "Why?"}]
FUNCTIONS = [
    {"type": "function", "function": {"name": name, "parameters": LOOK_UP}}
    for name in ("look_up", "other")
]
TEXT_PART = {"type": "text", "text": "Why?", "x": None}
TOOLS = [{"type": "function"} | tool["function"] for tool in FUNCTIONS]


def body_of(path, **fields):
    asked = {"input": "Why?"} if path == "responses" else {"messages": ASK}
    limit = {} if path == "responses" else {"max_tokens": 90}
    return {"model": "tiny"} | asked | limit | fields


def ask(server, path, **fields):
    return server.post(f"/v1/{path}", json=body_of(path, **fields))


def _without_own(path, body):
    return {n: body[n] for n in body if path != "completions" or n != "messages"}


HINTS = [
    ("chat/completions", {"service_tier": "flex", "prompt_cache_retention": "24h"}),
    ("chat/completions", {"prediction": {"type": "content", "content": "That is why."}}),
    ("chat/completions", {"reasoning_effort": "minimal", "documents": []}),
    ("chat/completions", {"mm_processor_kwargs": None, "kv_transfer_params": None}),
    ("chat/completions", {"truncate_prompt_tokens": -1, "store": True}),
    ("responses", {"include": ["reasoning.encrypted_content"], "store": False}),
    ("responses", {"reasoning": {"effort": "medium", "summary": "auto"}}),
    ("responses", {"service_tier": "priority", "max_tool_calls": 4}),
    ("responses", {"prompt_cache_retention": "in-memory", "text": {"verbosity": "medium"}}),
    ("messages", {"output_config": {"effort": "low"}, "context_management": {"edits": []}}),
]


@DIRECT_AND_ROUTED
def test_hints_change_no_answer(server):
    for path, fields in HINTS:
        plain, hinted = ask(server, path), ask(server, path, **fields)
        assert hinted.status_code == 200, hinted.text
        parts = "choices" if path == "chat/completions" else "output"
        parts = "content" if path == "messages" else parts
        for answer in plain, hinted:
            text = json.dumps(answer.json()[parts])
            assert "w\\u00f6rld" in text


NULLS = [
    ("chat/completions", {"some_sdk_field": None, "logprobs": False, "top_logprobs": 0}),
    ("chat/completions", {"messages": [{**ASK[0], "x": None}, {"y": None, **ASK[0]}]}),
    ("chat/completions", {"stream_options": None, "tools": [{**FUNCTIONS[0], "z": None}]}),
    ("chat/completions", {"messages": [{"role": "user", "content": [TEXT_PART]}]}),
    ("completions", {"prompt": "Why?", "mess": None, "max_tokens": 90}),
    ("responses", {"input": [{**ASK[0], "status": None, "x": None}], "y": None}),
    ("responses", {"text": {"format": {"type": "text", "x": None}}}),
    ("messages", {"messages": [{**ASK[0], "x": None}], "mcp": None}),
]


@DIRECT_AND_ROUTED
def test_what_is_null_asks_for_nothing(server):
    for path, fields in NULLS:
        # Tools are not for this model, which is said only once a body is valid.
        valid = (400,) if "tools" in fields else (200,)
        answer = server.post(f"/v1/{path}", json=_without_own(path, body_of(path) | fields))
        assert answer.status_code in valid, answer.text
        assert "nrecognized" not in answer.text


@DIRECT_AND_ROUTED
def test_what_is_unknown_and_not_null_is_named(server):
    for fields, param in (
        ({"x": None, "y": 0}, "y"),
        ({"messages": [{**ASK[0], "x": None}, {**ASK[0], "x": False}]}, "messages[1].x"),
    ):
        error = ask(server, "chat/completions", **fields).json()["error"]
        assert (error["param"], error["code"]) == (param, "unknown_parameter")


@DIRECT_AND_ROUTED
def test_a_body_may_begin_with_the_mark_of_utf8(server):
    content = "\ufeff" + json.dumps(body_of("chat/completions"))
    assert server.post("/v1/chat/completions", content=content.encode()).status_code == 200


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_metadata_has_bounds(server, path):
    most = {f"{number:064}": "x" * 512 for number in range(16)}
    assert ask(server, path, metadata=most).status_code == 200
    for labels in (most | {"one": "more"}, {"x" * 65: ""}, {"x": "x" * 513}):
        answer = ask(server, path, metadata=labels)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "metadata")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_may_name_tokens_by_their_ids(server, stream):
    asked = {"stream": stream, "return_tokens_as_token_ids": True}
    plain = {"model": "tiny", "prompt": "ab", "max_tokens": 2, "echo": True, "logprobs": 1}
    answers = [
        ask(server, "chat/completions", logprobs=True, top_logprobs=1, **asked),
        server.post("/v1/completions", json=plain | asked),
    ]
    for answer, first in zip(answers, (ord("H") + 10, 1), strict=True):
        lines = answer.text.split("\n")
        events = [line[6:] for line in lines if line.startswith("data: {")]
        parts = [json.loads(text) for text in (events if stream else [answer.text])]
        found = [part["choices"][0]["logprobs"] for part in parts]
        found = [each for each in found if each is not None]
        tokens = [token for each in found for token in each.get("tokens", ())]
        tokens += [each["token"] for part in found for each in part.get("content", ())]
        assert tokens[0] == f"token_id:{first}"
        assert all(token.startswith("token_id:") for token in tokens)
        assert f"token_id:{ord('a') + 10}" in json.dumps(found)  # a candidate of the fake engine


def test_no_share_of_the_probability_leaves_the_likeliest_token(server):
    for path, fields in (("chat/completions", {}), ("responses", {}), ("messages", {})):
        assert ask(server, path, top_p=0, temperature=2, **fields).status_code == 200
    completion = {"model": "tiny", "prompt": "a", "top_p": 0, "temperature": 2}
    assert server.post("/v1/completions", json=completion).status_code == 200
    [top_p] = {sampling.top_p for _, _, sampling, _ in server.llm.seen}
    assert SamplingBuilder({}, 10, print, print).build(RequestedSampling(top_p=top_p), 5)
    logits = torch.randn(8, 50_000)
    columns = (torch.full((8,), 2.0, dtype=torch.float64), torch.rand(8, dtype=torch.float64))
    drawn, _ = sample(logits, *columns, top_p=torch.full((8,), top_p, dtype=torch.float64))
    assert torch.equal(drawn, logits.argmax(dim=1))


@pytest.fixture
def thinker():
    with serving(make_thinking_llm) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", lambda effort: {"reasoning_effort": effort}),
        ("responses", lambda effort: {"reasoning": {"effort": effort}}),
        ("messages", lambda effort: {"output_config": {"effort": effort}}),
    ],
)
def test_templates_are_told_of_the_effort(thinker, path, fields):
    def told(effort, **more):
        answer = ask(thinker, path, **fields(effort), **more)
        assert answer.status_code == 200, answer.text
        options = thinker.llm.rendered[-1][1]
        del options["add_generation_prompt"]
        return answer.json(), options

    answer, options = told("high")
    assert options == {"reasoning_effort": "high"}
    if path == "responses":
        assert answer["reasoning"]["effort"] == "high"
    assert told("none")[1] == {"reasoning_effort": "none", "enable_thinking": False}
    own = {"enable_thinking": True, "reasoning_effort": "much"}
    assert told("none", chat_template_kwargs=own)[1] == own
    refused = ask(thinker, path, **fields("enough"))
    assert refused.status_code == 400
    assert "'minimal'" in refused.json()["error"]["message"]


def test_chats_are_tokenized_with_their_tools(thinker):
    body = {"messages": ASK, "tools": FUNCTIONS}
    assert thinker.post("/tokenize", json=body).status_code == 200
    assert ask(thinker, "chat/completions", tools=FUNCTIONS).status_code == 200
    tokenized, asked = (options["tools"] for _, options in thinker.llm.rendered[-2:])
    assert tokenized == asked
    refused = thinker.post("/tokenize", json={"prompt": "a", "tools": FUNCTIONS})
    assert refused.json()["error"]["param"] == "tools"


def test_templates_are_given_documents(thinker):
    documents = [{"title": "Why", "text": "Because."}]
    assert ask(thinker, "chat/completions", documents=documents).status_code == 200
    assert thinker.llm.rendered[-1][1]["documents"] == documents


def allowed(path, mode, *names):
    if path == "responses":
        tools = [{"type": "function", "name": name} for name in names]
        return {"type": "allowed_tools", "mode": mode, "tools": tools}
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_only_allowed_tools_are_callable(thinker, path):
    tools = TOOLS if path == "responses" else FUNCTIONS
    for mode in ("auto", "required"):
        choice = allowed(path, mode, "look_up")
        answer = ask(thinker, path, tools=tools, tool_choice=choice)
        assert answer.status_code == 200, answer.text
        [told] = thinker.llm.rendered[-1][1]["tools"]
        assert told["function"]["name"] == "look_up"
        structured = thinker.llm.seen[-1][2].structured
        assert (structured is not None) == (mode == "required")
        if structured is not None:
            assert "look_up" in structured.lark
            assert "other" not in structured.lark
        if path == "responses":
            assert answer.json()["tool_choice"] == choice
            assert len(answer.json()["tools"]) == 2
    refused = ask(thinker, path, tools=tools, tool_choice=allowed(path, "auto", "third"))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tool_choice"
    assert "'third'" in refused.json()["error"]["message"]


def test_what_a_model_refused_goes_back_as_its_text(thinker):
    refusals = [
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
    ]
    for refusal in refusals:
        answer = ask(thinker, "chat/completions", messages=[*ASK, refusal, *ASK])
        assert answer.status_code == 200, answer.text
        assert thinker.llm.rendered[-1][0][1]["content"] == "I will not."
    answer = ask(thinker, "responses", input=[*ASK, refusals[1], *ASK])
    assert answer.status_code == 200, answer.text
    assert thinker.llm.rendered[-1][0][1]["content"] == "I will not."


def test_hints_of_caching_are_not_shown_to_templates(thinker):
    parts = [{"type": "text", "text": text, "cache_control": {"type": "x"}} for text in "ab"]
    asked = [{"role": "user", "content": parts}]
    assert ask(thinker, "chat/completions", messages=asked).status_code == 200
    shown = [{"type": "text", "text": text} for text in "ab"]
    assert thinker.llm.rendered[-1][0][0]["content"] == shown


def test_thinking_goes_back_under_either_name(thinker):
    for name in ("reasoning_content", "reasoning"):
        turn = {"role": "assistant", "content": "So.", name: "Hm."}
        assert ask(thinker, "chat/completions", messages=[*ASK, turn, *ASK]).status_code == 200
        assert thinker.llm.rendered[-1][0][1]["reasoning_content"] == "Hm."


MISTYPED = [
    ("chat/completions", "tool_choice", "look_up"),
    ("chat/completions", "tool_choice", {"type": "custom", "custom": {"name": "f"}}),
    ("chat/completions", "stop", 5),
    ("chat/completions", "guided_json", 5),
    ("chat/completions", "structured_outputs", {"json": 5}),
    ("chat/completions", "structured_outputs", {"structural_tag": 5}),
    (
        "chat/completions",
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}},
    ),
    ("chat/completions", "messages", [{"role": "user", "content": 5}]),
    ("completions", "prompt", 5),
    ("completions", "prompt", {}),
    ("embeddings", "input", 5),
    ("responses", "input", 5),
    ("responses", "tool_choice", "look_up"),
    ("responses", "tool_choice", 5),
    ("responses", "text", {"format": {"type": "json_schema", "name": "x", "schema": 5}}),
    ("messages", "tool_choice", "look_up"),
    ("messages", "system", 5),
]


@pytest.mark.parametrize(("path", "field", "value"), MISTYPED)
def test_of_several_types_the_error_names_the_field_alone(server, path, field, value):
    body = {"model": "tiny", field: value}
    answer = server.post(f"/v1/{path}", json=body_of(path) | body)
    if path in ("completions", "embeddings"):
        answer = server.post(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    named = error.get("param") or error["message"].split("'")[1]
    assert named.startswith(field)
    assert not {"literal", "dict", "list[", "str", "bool"} & set(named.split("."))
    assert "['" not in named
