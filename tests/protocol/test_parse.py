"""From a body's bytes to a request."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.openai.parse import parse

TURN = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "object", "default": None, "x": None}


def body(nulls=(), **fields):
    """A request with fields that are null, and unknown, at places of it."""
    request = {
        "model": "m",
        "messages": [TURN, {"role": "assistant", "tool_calls": [CALL]}, TURN],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "chat_template_kwargs": {"x": None},
    } | fields
    request = json.loads(json.dumps(request))
    for path, name in nulls:
        node = request
        for part in path:
            node = node[part]
        node[name] = None
    return json.dumps(request).encode()


PLACES = [
    *((), ("messages", 0), ("messages", 2), ("messages", 1, "tool_calls", 0)),
    *(("messages", 1, "tool_calls", 0, "function"), ("tools", 0), ("tools", 0, "function")),
    *(("response_format",), ("response_format", "json_schema")),
]


@given(nulls=st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from("xyz")), max_size=6))
def test_nulls_are_as_if_they_were_not_there(nulls):
    plain = parse(body(), ChatCompletionRequest)
    assert plain.tools[0].function.parameters == SCHEMA  # a client's own nulls stay
    assert parse(body(nulls), ChatCompletionRequest) == plain


@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_null_is_named_beside_what_is(place):
    data = json.loads(body([(place, "x")], temperature=1))
    node = data
    for part in place:
        node = node[part]
    node["y"] = False
    with pytest.raises(ApiError) as caught:
        parse(json.dumps(data).encode(), ChatCompletionRequest)
    assert caught.value.detail.code == "unknown_parameter"
    assert caught.value.detail.param.split(".")[-1] == "y"
