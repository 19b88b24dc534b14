"""Answers that are not complete in the time that their request gives them."""

import asyncio

import openai
import pytest

from .conftest import DIRECT_AND_ROUTED

BODIES = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}], "n": 2},
    "completions": {"prompt": ["a", "b"]},
    "responses": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99},
}


def ask(server, path, **fields):
    return server.post(f"/v1/{path}", json={"model": "tiny"} | BODIES[path] | fields, timeout=60)


def hold(server):
    """Answers get all but their last delta."""
    server.llm.behaviour.hold = server.run(asyncio.Event)


@DIRECT_AND_ROUTED
@pytest.mark.parametrize("path", BODIES)
def test_what_takes_longer_ends_with_an_error(server, path):
    hold(server)
    late = ask(server, path, timeout=0.1)
    assert late.status_code == 408
    assert late.json()["error"]["type"] == "timeout_error"
    assert "0.1 s" in late.json()["error"]["message"]
    for seconds in (1, 5, 25):  # on a busy machine the first delta may take longer
        shown = ask(server, path, timeout=seconds, stream=True)
        if shown.status_code == 200:
            break
    assert shown.status_code == 200
    *_, last = shown.content.decode().rstrip("\n").split("\n\n")
    assert "[DONE]" not in last
    assert "request_timeout" in last or "timeout_error" in last
    server.wait_until(lambda: server.state.admission.in_flight == 0)
    server.wait_until(lambda: not server.llm.running)
    assert len(server.llm.aborted) == len(server.llm.streams)  # each of them once


@pytest.mark.parametrize("path", BODIES)
def test_what_is_in_time_is_as_ever(server, path):
    for stream in (False, True):
        answer = ask(server, path, timeout=60, stream=stream)
        assert answer.status_code == 200
        assert "request_timeout" not in answer.text
    for timeout in (0, -1, 1e9, "5"):
        refused = ask(server, path, timeout=timeout)
        assert refused.status_code == 400
        assert "timeout" in refused.json()["error"]["message"]


def test_by_the_official_client(server):
    hold(server)
    with (
        server.openai(max_retries=0) as client,
        pytest.raises(openai.APIStatusError, match="request's 'timeout'") as caught,
    ):
        client.responses.create(model="tiny", input="hi", extra_body={"timeout": 0.1})
    assert caught.value.status_code == 408
