"""What the log tells of each request."""

import asyncio
import logging

import pytest

from .conftest import open_request

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PATH = "/v1/chat/completions"


def test_logs_tell_numbers_and_no_text(serve, caplog):
    caplog.set_level(logging.DEBUG)
    server = serve(api_keys=["my-secret-key"])
    headers = {"Authorization": "Bearer my-secret-key", "X-Request-Id": "r1"}
    body = CHAT | {"messages": [{"role": "user", "content": "my private words"}]}
    server.post(PATH, json=body, headers=headers)
    server.post(PATH, json=body | {"stream": True}, headers=headers)
    server.get("/v1/models%0a?api_key=my-secret-key", headers=headers)
    server.wait_until(lambda: len(_access_records(caplog)) == 3)
    plain, streamed, odd = _access_records(caplog)
    for record in (plain, streamed):
        assert (record.request_id, record.method, record.path) == ("r1", "POST", PATH)
        assert record.status == 200
        assert record.prompt_tokens > 0
        assert record.completion_tokens == len("Hello, wörld!")
        assert len(record.client) == 12
    assert odd.path == "/v1/models\\n"
    everything = "\n".join(str(vars(record)) for record in caplog.records)
    ours = "\n".join(str(vars(r)) for r in caplog.records if r.name.startswith("pagelet"))
    assert "my private words" not in everything
    assert "my-secret-key" not in ours


def _access_records(caplog):
    return [record for record in caplog.records if record.name == "pagelet.access"]


@pytest.mark.parametrize("stream", [False, True])
def test_logs_tell_what_an_unfinished_request_cost(serve, caplog, stream):
    caplog.set_level(logging.INFO)
    server = serve()
    server.llm.behaviour.hold = server.run(asyncio.Event)
    server.llm.behaviour.lockstep = True
    connection = open_request(server, CHAT | {"stream": stream})
    tokens = len("Hello, wörld!") - 1  # the last is held back
    server.wait_until(lambda: server.llm.streams and server.llm.streams[0].num_put == tokens)
    server.wait_until(lambda: not server.llm.streams[0]._pending)
    connection.close()
    server.wait_until(lambda: _access_records(caplog))
    (record,) = _access_records(caplog)
    assert record.status == 499
    assert record.prompt_tokens > 0
    assert record.completion_tokens == tokens


def test_logs_tell_what_was_wrong(serve, caplog):
    caplog.set_level(logging.INFO)
    server = serve(api_keys=["key"])
    headers = {"Authorization": "Bearer key"}
    server.post(PATH, json=CHAT)
    server.post(PATH, json=CHAT | {"top_logprobs": 2}, headers=headers)
    server.post(PATH, json=CHAT | {"model": "other"}, headers=headers)
    server.get("/nowhere", headers=headers)
    server.llm.behaviour.die_after = 3
    server.post(PATH, json=CHAT | {"stream": True}, headers=headers)
    server.wait_until(lambda: len(_access_records(caplog)) == 5)
    told = [(r.status, r.error, getattr(r, "param", None)) for r in _access_records(caplog)]
    assert told == [
        (401, "invalid_api_key", None),
        (400, "invalid_value", "top_logprobs"),
        (404, "model_not_found", "model"),
        (404, "unknown_url", None),
        (200, "engine_unavailable", None),
    ]
    broken = _access_records(caplog)[-1]
    assert broken.prompt_tokens > 0
    assert broken.completion_tokens > 0
