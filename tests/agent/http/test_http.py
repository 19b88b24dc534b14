"""HTTP itself: errors in one shape, limits, keys, ids, drain, probes."""

import asyncio
import contextlib
import json
import os
import socket
import threading

import httpx
import openai
import pytest

from pagelet.process import open_requests
from pagelet.protocol.request_id import clean_request_id
from support.large_bodies import by_http_client

from .conftest import open_request

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PATH = "/v1/chat/completions"


def error_of(response):
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return body["error"]


def metric(server, name):
    for line in server.get("/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.removeprefix(name + " "))
    raise AssertionError(f"no {name}")


@pytest.mark.parametrize(
    ("request_args", "status", "param"),
    [
        ({"method": "GET", "url": "/nothing"}, 404, None),
        ({"method": "GET", "url": PATH}, 405, None),
        ({"method": "POST", "url": PATH, "content": b""}, 400, None),
        ({"method": "POST", "url": PATH, "content": b"{"}, 400, None),
        ({"method": "POST", "url": PATH, "content": b"[]"}, 400, None),
        ({"method": "POST", "url": PATH, "content": b"null"}, 400, None),
        ({"method": "POST", "url": PATH, "content": b"\xff\xfe"}, 400, None),
        ({"method": "POST", "url": PATH, "content": b"[" * 10_000}, 400, None),
        ({"method": "POST", "url": PATH, "content": b'{"metadata":' * 10_000}, 400, None),
        ({"method": "POST", "url": PATH, "content": b'{"model":"\\ud800"}'}, 400, None),
        ({"method": "POST", "url": PATH, "data": {"model": "tiny"}}, 415, None),
        ({"method": "POST", "url": PATH, "json": {"model": "tiny"}}, 400, "messages"),
        ({"method": "POST", "url": PATH, "json": CHAT | {"nonsense": 1}}, 400, "nonsense"),
        ({"method": "POST", "url": PATH, "json": CHAT | {"n": 1.5}}, 400, "n"),
        ({"method": "POST", "url": PATH, "json": CHAT | {"seed": 10**30}}, 400, "seed"),
        ({"method": "POST", "url": PATH, "json": CHAT | {"n": 10**9}}, 400, "n"),
        ({"method": "POST", "url": PATH, "json": CHAT | {"priority": 1}}, 400, "priority"),
        ({"method": "POST", "url": PATH, "json": CHAT | {"audio": {}}}, 400, "audio"),
        (
            {
                "method": "POST",
                "url": PATH,
                "json": CHAT | {"response_format": {"type": "json_schema"}},
            },
            400,
            "response_format.json_schema",
        ),
        (
            {"method": "POST", "url": PATH, "json": CHAT | {"top_logprobs": 2}},
            400,
            "top_logprobs",
        ),
        (
            {"method": "POST", "url": PATH, "json": CHAT | {"stream_options": {}}},
            400,
            "stream_options",
        ),
        (
            {
                "method": "POST",
                "url": PATH,
                "json": {
                    "model": "tiny",
                    "messages": [{"role": "user", "content": [{"type": "image_url"}]}],
                },
            },
            400,
            "messages[0].content",
        ),
        (
            {"method": "POST", "url": "/v1/completions", "json": {"model": "tiny", "prompt": []}},
            400,
            "prompt",
        ),
        (
            {"method": "POST", "url": "/v1/completions", "json": {"model": "tiny", "prompt": [[]]}},
            400,
            "prompt",
        ),
        (
            {
                "method": "POST",
                "url": "/v1/completions",
                "json": {"model": "tiny", "prompt": "a", "suffix": "b"},
            },
            400,
            "suffix",
        ),
        ({"method": "POST", "url": "/tokenize", "json": {}}, 400, "prompt"),
        ({"method": "POST", "url": "/detokenize", "json": {"tokens": [2**32 - 1]}}, 400, "tokens"),
    ],
)
def test_errors_have_one_shape(server, request_args, status, param):
    url = server.url + request_args.pop("url")
    response = httpx.request(url=url, **request_args, timeout=60)
    assert response.status_code == status
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    if param is not None and status == 400:
        server.wait_until(lambda: server.state.admission.in_flight == 0)


@pytest.mark.parametrize("line", [b"X-Header: value\r\n", b"x" * 1000])
def test_headers_without_end_are_cut_off(server, line):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-First: ")
        # A server without a bound would wait for more, and `recv` time out.
        with contextlib.suppress(ConnectionError):
            client.sendall(line * ((8 << 20) // len(line)))
            while client.recv(4096):
                pass
    assert server.get("/health").status_code == 200


def test_heads_in_one_read_with_large_bodies_pass(server):
    body = json.dumps({"prompt": "a" * 100_000}).encode()
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body)
    requests = (head + b"\r\n" + body) * 3 + b"GET /health HTTP/1.1\r\nHost: x\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(requests)
        client.sendall(b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert answer.count(b"HTTP/1.1 200") == 4


def test_nul_bytes_are_text(server):
    response = server.post("/tokenize", json={"prompt": "a\0b"})
    assert response.json()["tokens"] == [1, 107, 10, 108]


def test_many_errors_are_not_spelled_out(server):
    body = CHAT | {"logit_bias": {f"x{i}": 1 for i in range(2000)}}
    response = server.post(PATH, json=body)
    assert response.status_code == 400
    assert "errors" in error_of(response)["message"]


def test_bodies_of_very_many_values_are_refused_at_once(server):
    response = server.post(PATH, json=CHAT | {"stop_token_ids": [0] * 500_000})
    assert response.status_code == 413
    assert "400000 values" in error_of(response)["message"]
    assert server.post(PATH, json=CHAT).status_code == 200


def test_only_the_first_of_many_unknown_names_is_looked_at(server):
    body = CHAT | {f"x{i}": 1 for i in range(50_000)}
    response = server.post(PATH, json=body)
    assert response.status_code == 400
    assert error_of(response)["message"] == "Unrecognized request argument supplied: x0"


def test_an_unforeseen_error_tells_nothing(server, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise RuntimeError("a secret")

    monkeypatch.setattr(server.llm, "render_chat", fail)
    response = server.post(PATH, json=CHAT)
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text
    assert server.get("/health").status_code == 200


def test_tokenize_and_detokenize(server):
    tokenized = server.post("/tokenize", json={"prompt": "ab", "return_token_strs": True}).json()
    assert tokenized == {
        "count": 3,
        "max_model_len": 1000,
        "tokens": [1, 107, 108],
        "token_strs": ["<s>", "a", "b"],
    }
    bare = server.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False}).json()
    assert bare["tokens"] == [107, 108]
    chat = server.post("/tokenize", json={"messages": CHAT["messages"]}).json()
    text = server.post("/detokenize", json={"tokens": chat["tokens"]}).json()
    assert text == {"prompt": "<user>Hi<assistant>"}
    body = {"messages": CHAT["messages"], "add_special_tokens": True}
    assert server.post("/tokenize", json=body).json()["tokens"] == [1, *chat["tokens"]]
    body = {"messages": CHAT["messages"], "chat_template_kwargs": {"add_special_tokens": True}}
    answer = server.post("/tokenize", json=body)
    assert "has its own field" in error_of(answer)["message"]


# Sizes, rates and keys


def test_a_body_that_says_it_is_too_large(serve):
    server = serve(max_body_bytes=1000)
    response = server.post(PATH, content=b" " * 1001)
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"
    assert metric(server, 'pagelet_rejected_requests_total{reason="too_large"}') == 1


def test_a_body_that_does_not_say_how_large_it_is(serve):
    server = serve(max_body_bytes=1000)

    def parts():
        for _ in range(50):
            yield b" " * 100

    response = server.post(PATH, content=parts(), headers={"content-type": "application/json"})
    assert response.status_code == 413


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_a_client_that_sends_all_before_it_reads_is_told_too(serve, chunked):
    server = serve()
    status, answer = by_http_client(server.url + PATH, 17 << 20, chunked)
    assert status == 413
    assert json.loads(answer)["error"]["code"] == "request_too_large"


def test_keys(serve, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nfrom-file  # the first\n\n")
    server = serve(api_keys=["given"], api_key_file=str(file))
    for key in ("given", "from-file"):
        headers = {"Authorization": f"Bearer {key}"}
        assert server.get("/v1/models", headers=headers).status_code == 200
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic given"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer # ours"},
        {"Authorization": b"Bearer \xff\xfe"},
    ):
        response = server.get("/v1/models", headers=headers)
        assert response.status_code == 401
        assert error_of(response)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    with server.openai(api_key="wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    for path in ("/health", "/ping", "/ready", "/load", "/metrics", "/version"):
        assert server.get(path).status_code == 200
    assert server.get("/v1/config").status_code == 401
    config = server.get("/v1/config", headers={"Authorization": "Bearer given"})
    assert "given" not in config.text
    assert str(file) not in config.text


def test_rate_limit_is_for_each_key(serve):
    server = serve(api_keys=["a", "b"], rate_limit=1)
    a, b = ({"Authorization": f"Bearer {key}"} for key in "ab")
    first = server.post(PATH, json=CHAT, headers=a)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    second = server.post(PATH, json=CHAT, headers=a)
    assert second.status_code == 429
    assert error_of(second)["code"] == "rate_limit_exceeded"
    assert 30 < int(second.headers["retry-after"]) <= 60
    assert server.post(PATH, json=CHAT, headers=b).status_code == 200
    assert server.get("/v1/models", headers=a).status_code == 200


def test_full_queue(serve):
    server = serve(max_queue=2)
    server.llm.behaviour.step = 3600
    with httpx.Client(base_url=server.url, timeout=60) as client:
        body = CHAT | {"n": 2}
        thread = threading.Thread(target=lambda: _ignore(client, body))
        thread.start()
        server.wait_until(lambda: server.llm.running)
        refused = server.post(PATH, json=CHAT)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert error_of(refused)["code"] == "queue_full"
        assert metric(server, 'pagelet_rejected_requests_total{reason="queue_full"}') == 1
        server.run(server.llm.die)
        thread.join(60)
    server.wait_until(lambda: server.state.admission.in_flight == 0)


def _ignore(client, body):
    client.post(PATH, json=body)


# Ids and logs


def test_request_ids(server):
    given = server.post(PATH, json=CHAT, headers={"X-Request-Id": "me-1"})
    assert given.headers["x-request-id"] == "me-1"
    assert given.json()["id"] == "chatcmpl-me-1"
    made = server.post(PATH, json=CHAT).headers["x-request-id"]
    assert len(made) == 32
    in_body = server.post(PATH, json=CHAT | {"request_id": "me-2"})
    assert in_body.headers["x-request-id"] == "me-2"
    assert [request_id for request_id, *_ in server.llm.seen] == ["me-1", made, "me-2"]


def test_request_ids_are_cleaned():
    assert clean_request_id("a b\r\nc\u00e9!") == "abc"
    assert len(clean_request_id("a" * 1000)) == 128
    assert clean_request_id("\n") != clean_request_id("\n")


def test_key_file_must_be_readable_at_start(serve, tmp_path):
    from pagelet.agent.auth import ApiKeys

    with pytest.raises(FileNotFoundError):
        ApiKeys(file=tmp_path / "none")


# Probes, drain, browsers


def test_health_tells_the_truth(server):
    asks = [
        lambda: server.get("/health"),
        lambda: server.get("/ping"),
        lambda: server.post("/ping"),
    ]
    assert [ask().status_code for ask in asks] == [200] * 3
    server.llm.health = "engine core 0: step 7 has run for 61 s"
    for response in [ask() for ask in asks]:
        assert response.status_code == 503
        assert "step 7" in error_of(response)["message"]


def test_load_is_what_is_open(server):
    assert server.get("/load").json() == {"server_load": 0}
    server.llm.behaviour.hold = server.run(asyncio.Event)
    with server.openai(max_retries=0) as client:
        stream = client.chat.completions.create(stream=True, **CHAT)
        next(stream)
        assert server.get("/load").json() == {"server_load": 1}
        server.run(server.llm.behaviour.hold.set)
        assert list(stream)
    server.wait_until(lambda: server.state.open_requests == 0)
    assert server.get("/load").json() == {"server_load": 0}


def test_ready_needs_a_model(server):
    assert server.get("/ready").status_code == 200
    server.llm.is_ready = False
    assert server.get("/ready").status_code == 503


def test_drain(server):
    held = server.run(asyncio.Event)
    server.llm.behaviour.hold = held
    with server.openai(max_retries=0) as client:
        stream = client.chat.completions.create(stream=True, **CHAT)
        first = next(stream)
        server.run(server.state.begin_drain)
        assert server.get("/ready").status_code == 503
        assert server.get("/health").status_code == 200
        refused = server.post(PATH, json=CHAT)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        assert metric(server, "pagelet_draining") == 1
        assert metric(server, "pagelet_open_requests") == 1
        server.run(held.set)
        rest = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert first.choices[0].delta.content + "".join(rest) == "Hello, wörld!"
    server.wait_until(server.state._idle.is_set)
    assert metric(server, "pagelet_open_requests") == 0


@pytest.mark.parametrize("comes", [True, False])
def test_a_drain_waits_for_no_body_that_does_not_come(serve, monkeypatch, comes):
    monkeypatch.setattr(open_requests, "BODY_SECONDS", 600.0 if comes else 0.1)
    body = json.dumps(CHAT).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        client.sendall(head + body[:5])
        server.wait_until(lambda: server.state.open_requests == 1)
        server.run(server.state.begin_drain)
        client.sendall(body[5:10])
        if comes:
            client.sendall(body[10:])
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")
        else:
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
            assert answer.startswith(b"HTTP/1.1 503 ")
            for told in (b"retry-after: 1", b"connection: close", b'"draining"'):
                assert told in answer
        server.finish(server.state.wait_idle)


def test_config_and_version(server):
    config = server.get("/v1/config").json()
    assert config["engine"]["model"]["source"] == "folder/tiny"
    assert config["engine"]["cache"]["block_size"] == 16
    assert config["server"]["max_queue"] == 1024
    assert config["server"]["api_key_required"] is False
    assert config["sampling_defaults"] == {"temperature": 0.5, "top_p": 0.75}
    assert server.get("/version").json()["version"]


def test_browsers_are_refused_unless_their_origin_is_allowed(serve):
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    closed = serve()
    preflight = httpx.options(closed.url + PATH, headers=headers, timeout=60)
    assert preflight.status_code == 405
    assert "access-control-allow-origin" not in closed.get("/v1/models", headers=headers).headers
    opened = serve(cors_origins=["https://app.example"], api_keys=["k"])
    preflight = httpx.options(opened.url + PATH, headers=headers, timeout=60)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    refused = opened.get("/v1/models", headers=headers)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"


def test_openapi_names_the_bodies(server):
    schema = server.get("/openapi.json").json()
    body = schema["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatCompletionRequest"}
    assert "messages" in schema["components"]["schemas"]["ChatCompletionRequest"]["properties"]


# Disconnects


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_aborts(server, stream):
    server.llm.behaviour.text = "x" * 1000
    server.llm.behaviour.step = 0.01
    connection = open_request(server, CHAT | {"stream": stream, "request_id": "gone"})
    server.wait_until(lambda: server.llm.running)
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    connection.close()
    server.wait_until(lambda: not server.llm.running)
    assert server.llm.aborted == ["gone"]
    server.wait_until(lambda: server.state.admission.in_flight == 0)
    server.wait_until(lambda: server.state.open_requests == 0)


def test_a_disconnect_before_the_first_token_aborts(server):
    server.llm.behaviour.step = 3600
    connection = open_request(server, CHAT | {"stream": True, "n": 3, "request_id": "gone"})
    server.wait_until(lambda: server.llm.running)
    connection.close()
    server.wait_until(lambda: server.llm.aborted == ["gone"])
    server.wait_until(lambda: server.state.admission.in_flight == 0)


def test_a_disconnect_in_the_middle_of_a_body(server):
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode())
    server.wait_until(lambda: server.state.open_requests == 1)
    connection.close()
    server.wait_until(lambda: server.state.open_requests == 0)
    assert server.llm.seen == []


def test_a_slow_reader_gets_everything_in_fewer_chunks(server):
    text = "".join(chr(ord("a") + i % 26) for i in range(200_000))
    server.llm.behaviour.text = text
    connection = open_request(server, CHAT | {"stream": True})
    server.wait_until(lambda: server.llm.running)
    server.wait_until(lambda: not server.llm.running)  # the engine did not wait for the reader
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        data += connection.recv(1 << 20)
    connection.close()
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == text
    assert len(deltas) < len(text)


# Engine failures


def test_the_engine_dies_before_the_answer(server):
    server.llm.behaviour.die_after = 0
    for stream in (False, True):
        response = server.post(PATH, json=CHAT | {"stream": stream})
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
        assert error_of(response)["code"] == "engine_unavailable"


def test_the_engine_dies_in_mid_stream(server):
    server.llm.behaviour.die_after = 3
    response = server.post(PATH, json=CHAT | {"stream": True})
    assert response.status_code == 200
    *_, last = response.text.strip().split("\n\n")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
    assert "[DONE]" not in response.text
    with server.openai(max_retries=0) as client:
        stream = client.chat.completions.create(stream=True, **CHAT)
        with pytest.raises(openai.APIError, match="engine core 0 died"):
            list(stream)
    assert server.post(PATH, json=CHAT).status_code == 503
    server.wait_until(lambda: server.state.admission.in_flight == 0)


def test_one_answer_fails(server):
    server.llm.behaviour.fail_after = 2
    response = server.post(PATH, json=CHAT)
    assert response.status_code == 503
    assert "out of blocks" in error_of(response)["message"]
    batch = {"model": "tiny", "prompt": ["a", "b", "c"], "stream": True}
    streamed = server.post("/v1/completions", json=batch)
    assert "out of blocks" in streamed.text
    assert "[DONE]" not in streamed.text
    server.wait_until(lambda: not server.llm.running)


def test_one_prompt_of_a_batch_is_refused(server):
    server.llm.behaviour.step = 3600
    body = {"model": "tiny", "prompt": [[200], [], [201]]}
    response = server.post("/v1/completions", json=body)
    assert response.status_code == 400
    server.wait_until(lambda: not server.llm.running)
    assert len(server.llm.aborted) == 2
    server.wait_until(lambda: server.state.admission.in_flight == 0)


def test_key_file_is_read_again(tmp_path, monkeypatch, caplog):
    from pagelet.agent import auth

    clock = [0.0]
    monkeypatch.setattr("pagelet.process.watched.time.monotonic", lambda: clock[0])
    file = tmp_path / "keys"
    file.write_text("old")
    keys = auth.ApiKeys(file=file)
    assert keys.identify("Bearer old")
    file.write_text("new-key")
    os.utime(file, ns=(1, 1))
    clock[0] = 5
    assert keys.identify("Bearer old") is None
    name = keys.identify("bearer  new-key")
    assert name
    assert "new" not in name
    assert not keys.broken
    file.unlink()
    clock[0] = 10
    assert keys.broken
    assert keys.identify("Bearer new-key") == name
    file.write_text("")
    clock[0] = 15
    caplog.clear()
    assert keys.identify("Bearer new-key") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "has no keys" in caplog.text
    assert keys.required
    assert not keys.broken


@pytest.mark.parametrize("wrong", ["schlüssel", "two words", "a\tb", "a\x0bb", "\ufeffkey"])
def test_what_no_header_can_carry_is_no_key(tmp_path, monkeypatch, wrong):
    from pagelet.agent import auth
    from pagelet.protocol.api_keys import BadKey

    file = tmp_path / "keys"
    file.write_text(f"# two keys\ngood\n{wrong}\n", encoding="utf-8")
    with pytest.raises(BadKey, match="line 3: character") as caught:
        auth.ApiKeys(file=file)
    assert wrong not in str(caught.value)
    clock = [0.0]
    monkeypatch.setattr("pagelet.process.watched.time.monotonic", lambda: clock[0])
    file.write_text("last # in force\r\n")
    keys = auth.ApiKeys(file=file)
    file.write_text(f"new\n{wrong}\n", encoding="utf-8")
    clock[0] = 5
    assert keys.identify("Bearer last")
    assert keys.broken
    assert keys.identify("Bearer new") is None
