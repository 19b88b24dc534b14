"""The exact bytes of streams, and that their quick path says what the full one does."""

import json
import re

import pytest

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
COMPLETION = {"model": "tiny", "prompt": "p", "stream": True}


def events(server, path, body):
    server.llm.behaviour.lockstep = True
    response = server.post(path, json=body, headers={"X-Request-Id": "r"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.text.endswith("\n\n")
    lines = response.text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [re.sub(r'"created":\d+', '"created":0', line.removeprefix("data: ")) for line in lines]


def test_chat(server):
    server.llm.behaviour.text = 'ö"'
    head = '{"id":"chatcmpl-r","object":"chat.completion.chunk","created":0,"model":"tiny",'
    choice = head + '"choices":[{"index":0,"delta":'
    options = {"stream_options": {"include_usage": True}}
    assert events(server, "/v1/chat/completions", CHAT | options) == [
        choice + '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        '"usage":null}',
        choice + '{"content":"ö"},"logprobs":null,"finish_reason":null}],"usage":null}',
        choice + '{"content":"\\""},"logprobs":null,"finish_reason":"stop","stop_reason":null}],'
        '"usage":null}',
        head + '"choices":[],"usage":{"prompt_tokens":19,"completion_tokens":2,"total_tokens":21,'
        '"prompt_tokens_details":{"cached_tokens":16},'
        '"completion_tokens_details":{"reasoning_tokens":0}}}',
        "[DONE]",
    ]


def test_completion(server):
    server.llm.behaviour.text = "a\nb"
    choice = (
        '{"id":"cmpl-r","object":"text_completion","created":0,"model":"tiny",'
        '"choices":[{"index":0,"text":'
    )
    assert events(server, "/v1/completions", COMPLETION | {"max_tokens": 2}) == [
        choice + '"a","logprobs":null,"finish_reason":null}]}',
        choice + '"\\n","logprobs":null,"finish_reason":"length","stop_reason":null}]}',
        "[DONE]",
    ]


@pytest.mark.parametrize("text", ["plain", "\x00\x1f\x7f", '"\\/', "\u2028\ufeff", "日本🎉é"])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
)
def test_quick_path_and_full_path_agree(server, path, body, text):
    """`return_token_ids` takes the full path, and adds one field."""
    server.llm.behaviour.text = text
    quick = [json.loads(event) for event in events(server, path, body)[:-1]]
    full = [json.loads(e) for e in events(server, path, body | {"return_token_ids": True})[:-1]]
    for event in full:
        event["choices"][0].pop("token_ids", None)
        event["choices"][0].pop("prompt_token_ids", None)
    if path == "/v1/completions":
        full = full[1:]  # the first one brought the prompt's ids alone
    assert quick == full
    shown = [e["choices"][0] for e in quick]
    assert "".join(c.get("text") or c.get("delta", {}).get("content", "") for c in shown) == text


def test_a_delta_without_text_is_no_chunk(server):
    server.llm.behaviour.hide_until = 3
    chunks = events(server, "/v1/completions", COMPLETION)
    server.llm.behaviour.hide_until = 0
    assert len(chunks) == len(events(server, "/v1/completions", COMPLETION)) - 2
