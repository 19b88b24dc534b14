"""Request bodies, and what is read from streamed answers."""

import json
from typing import Any

import pytest

from pagelet.bench.load.http_client import RequestFailed
from pagelet.bench.load.openai_api import AnswerReader, RequestOptions
from support.answering import event


def read(events: list[Any]) -> AnswerReader:
    reader = AnswerReader()
    for number, value in enumerate(events):
        reader(event(value), float(number))
    return reader


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def test_a_completion_asks_for_a_stream_with_usage() -> None:
    body = json.loads(RequestOptions("m", extra_body={"top_k": 5}).body((1, 2), 7))
    assert body == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 7,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_k": 5,
    }


def test_a_chat_gets_messages_and_leaves_out_what_is_not_asked_for() -> None:
    options = RequestOptions("m", "chat", ignore_eos=False, temperature=None)
    body = json.loads(options.body("hi", 7))
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["max_completion_tokens"] == 7
    assert not body.keys() & {"temperature", "ignore_eos", "max_tokens", "prompt"}


def test_times_text_and_usage_of_a_completion() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    reader = read(
        [
            {"choices": [{"text": "a"}]},
            {"choices": [{"text": ""}]},  # a token whose text is not complete yet
            {"choices": [{"text": "é", "finish_reason": "length"}]},
            {"choices": [], "usage": usage},
            "[DONE]",
        ]
    )
    reader.check()
    assert reader.token_times == [0.0, 1.0, 2.0]
    assert "".join(reader.text) == "aé"
    assert reader.num_tokens == 5
    assert reader.usage.prompt_tokens == 9
    assert reader.usage.prompt_tokens_details is not None
    assert reader.usage.prompt_tokens_details.cached_tokens == 4


def test_the_event_that_only_names_a_chats_role_is_no_token() -> None:
    reader = read([delta(role="assistant", content=""), delta(content="a"), delta(), "[DONE]"])
    assert reader.token_times == [1.0, 2.0]
    reader = read([delta(role="assistant", content="a"), "[DONE]"])
    assert reader.token_times == [0.0]


def test_without_usage_events_are_counted() -> None:
    reader = read([{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}, "[DONE]"])
    assert reader.num_tokens == 2


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"error": {"message": "dead", "code": 500}}, "error in the stream"),
        ("{", "malformed event"),
        ({"choices": "none"}, "malformed event"),
    ],
)
def test_an_event_that_is_no_token_fails_the_answer(value: Any, kind: str) -> None:
    with pytest.raises(RequestFailed) as failure:
        read([{"choices": [{"text": "a"}]}, value])
    assert failure.value.kind == kind


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([{"choices": [{"text": "a"}]}], r"stream without \[DONE\]"),
        (["[DONE]"], "no token in the answer"),
    ],
)
def test_an_answer_that_stops_early_is_none(events: list[Any], kind: str) -> None:
    with pytest.raises(RequestFailed, match=kind):
        read(events).check()
