"""Fields that are known but not served pass with values that ask for nothing, and only then."""

import importlib
import json
import pkgutil
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from pagelet.protocol import anthropic, openai
from pagelet.protocol.openai import routing
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.completions import CompletionRequest
from pagelet.protocol.openai.errors import describe, param_name
from pagelet.protocol.openai.fields import RequestBody

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}

NOT_SERVED = {
    "functions": ([], [{"name": "f"}]),
    "function_call": ("none", {"name": "f"}),
    "no_stop_trim": (False, True),
    "return_hidden_states": (False, True),
    "separate_reasoning": (True, False),
    "stream_reasoning": (True, False),
    "audio": (None, {"voice": "v"}),
    "modalities": (["text"], ["text", "audio"]),
    "web_search_options": (None, {}),
    "verbosity": ("medium", "low"),
    "chat_template": (None, "{{ 1 }}"),
    "mm_processor_kwargs": ({}, {"a": 1}),
    "kv_transfer_params": (None, {"a": 1}),
    "vllm_xargs": ({}, {"a": 1}),
    "logits_processors": ([], ["a"]),
    "echo": (False, True),
}


def refusal(model, body):
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(json.dumps(body))
    return describe(caught.value.errors(include_url=False, include_input=False)[0])


@pytest.mark.parametrize(("field", "values"), NOT_SERVED.items())
def test_not_served(field, values):
    neutral, asking = values
    for value in (None, neutral):
        ChatCompletionRequest.model_validate_json(json.dumps(CHAT | {field: value}))
    error = refusal(ChatCompletionRequest, CHAT | {field: asking})
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert field in error.message


def every_body():
    """All that clients send; the rest is between a router and its replicas."""
    for package in (anthropic, openai):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found = RequestBody.__subclasses__()
    for body in found:
        found += body.__subclasses__()
    return [body for body in found if body.__module__ != routing.__name__]


@pytest.mark.parametrize("body", every_body(), ids=lambda body: body.__name__)
def test_what_may_be_left_out_may_be_null(body):
    for name, field in body.model_fields.items():
        if not field.is_required():
            kind = Annotated[field.annotation, "", *field.metadata]
            value = TypeAdapter(kind).validate_python(None)
            assert value == field.get_default(call_default_factory=True), name


def test_zero_is_not_false():
    assert refusal(ChatCompletionRequest, CHAT | {"store": 0}).param == "store"


def test_best_of_is_at_least_n():
    drawn = []
    for body in ({}, {"n": 2, "best_of": None}, {"best_of": 3}, {"n": 3, "best_of": 3}):
        asked = CompletionRequest.model_validate_json(json.dumps(COMPLETION | body))
        drawn.append(asked.num_drawn)
    assert drawn == [1, 2, 3, 3]
    for body in (
        {"n": 2, "best_of": 1},
        {"best_of": 0},
        {"best_of": 2, "stream": True},
        {"best_of": 2, "use_beam_search": True},
    ):
        assert refusal(CompletionRequest, COMPLETION | body).param == "best_of"
    for n in (0, -1):
        assert refusal(CompletionRequest, COMPLETION | {"n": n, "best_of": 2}).param == "n"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ([1, "a"], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1, -1]], "prompt[0][1]"),
        (None, "prompt"),
        ({}, "prompt"),
        (True, "prompt"),
    ],
)
def test_prompts_that_are_none(prompt, param):
    assert refusal(CompletionRequest, COMPLETION | {"prompt": prompt}).param == param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])],
)
def test_prompts(prompt, prompts):
    body = CompletionRequest.model_validate_json(json.dumps(COMPLETION | {"prompt": prompt}))
    assert body.prompts() == prompts


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "b"},
            {"role": "user", "content": "a", "name": "b"},
        ),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
    ],
)
def test_messages_for_the_template(given, shown):
    body = ChatCompletionRequest.model_validate_json(json.dumps(CHAT | {"messages": [given]}))
    assert body.messages[0].for_template() == shown


def test_several_parts_are_the_templates_business():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = CHAT | {"messages": [{"role": "user", "content": parts}]}
    message = ChatCompletionRequest.model_validate_json(json.dumps(body)).messages[0]
    assert message.for_template()["content"] == parts


@pytest.mark.parametrize("name", ["messages", "tools", "self", "continue_final_message"])
def test_template_arguments_cannot_replace_fields(name):
    error = refusal(ChatCompletionRequest, CHAT | {"chat_template_kwargs": {name: 1}})
    assert error.param == "chat_template_kwargs"


def test_unknown_fields_are_named_where_they_are():
    error = refusal(ChatCompletionRequest, CHAT | {"tempersture": 1})
    assert error.message == "Unrecognized request argument supplied: tempersture"
    deep = {"messages": [{"role": "user", "content": "a", "x{y}": 1}]}
    assert refusal(ChatCompletionRequest, CHAT | deep).param == "messages[0].x{y}"


def test_param_names_are_bounded():
    assert param_name(("messages", 0, "content", "<tag>", 3)) == "messages[0].content[3]"
    assert len(param_name(("x" * 10_000,))) == 200
    assert param_name(()) is None
