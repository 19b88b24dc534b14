"""Requests spelled as some clients do and most do not."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pagelet.agent.http import body

from .conftest import DIRECT_AND_ROUTED

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PATH = "/v1/chat/completions"


@DIRECT_AND_ROUTED
@pytest.mark.parametrize("stream", [False, True])
def test_clients_of_http_1_0_get_no_chunks(server, stream):
    body = json.dumps(CHAT | {"stream": stream}).encode()
    head = b"POST %b HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(head % (PATH.encode(), len(body)) + body)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))  # until it is closed
    headers, _, content = answer.partition(b"\r\n\r\n")
    assert b" 200 " in headers.splitlines()[0]
    assert b"transfer-encoding" not in headers.lower()
    assert b"connection: close" in headers.lower()
    if stream:
        assert content.startswith(b"data: {")
        assert content.endswith(b"data: [DONE]\n\n")
        events = [line for line in content.split(b"\n") if line]
        assert all(line.startswith(b"data: ") for line in events)
    else:
        assert json.loads(content)["choices"]


@DIRECT_AND_ROUTED
@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_send_no_more_are_answered(server, stream):
    """They close their sending side behind the request, as `nc -N` does."""
    body = json.dumps(CHAT | {"stream": stream}).encode()
    head = b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
    behaviour = server.llm.behaviour
    behaviour.text, behaviour.hold = "!", server.run(asyncio.Event)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(head % (PATH.encode(), len(body)) + body)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it has been seen
        server.run(behaviour.hold.set)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"data: [DONE]" in answer) == stream
    assert b"!" in answer
    server.wait_until(lambda: not server.llm.running)
    assert not server.llm.aborted


@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity"])
def test_numbers_that_json_does_not_have(server, number):
    content = json.dumps(CHAT)[:-1] + f', "temperature": {number}}}'
    response = server.post(PATH, content=content)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    "number", ["1e400", "1E+400", "NaN", "-Infinity", "1" * 250 + "e99", "9" * 310 + ".0"]
)
def test_nor_are_they_taken_where_anything_goes(server, number):
    content = json.dumps(CHAT)[:-1] + f', "chat_template_kwargs": {{"x": [{number}]}}}}'
    response = server.post(PATH, content=content)
    assert response.status_code == 400
    assert "We could not parse the JSON body" in response.json()["error"]["message"]
    content = content.replace(number, json.dumps(f"{number} is text"))
    assert server.post(PATH, content=content).status_code == 200


def test_large_numbers_are_taken(server):
    large = CHAT | {"chat_template_kwargs": {"x": [1.5e300, -1e-300, 10**400]}}
    assert server.post(PATH, json=large).status_code == 200


LONG = {"user": "a" * 100_000}


@pytest.mark.parametrize(
    ("extra", "status", "param"),
    [
        ({}, 200, None),
        ({"temperature": "warm"}, 400, "temperature"),
        ({"nonsense": 1}, 400, "nonsense"),
        ({"metadata": {str(number): "a" for number in range(17)}}, 400, "metadata"),
        ({"chat_template_kwargs": {"a": [{}] * 20_000}}, 413, None),
    ],
)
def test_long_bodies_are_taken_as_short_ones_are(server, extra, status, param):
    for padding in ({}, LONG):
        response = server.post(PATH, json=CHAT | padding | extra)
        assert response.status_code == status
        assert status == 200 or response.json()["error"]["param"] == param


def test_others_are_answered_while_a_long_body_is_validated(server, monkeypatch):
    seen, go_on, parse = threading.Event(), threading.Event(), body.parse

    def slow(data, model):
        seen.set()
        assert go_on.wait(60)
        return parse(data, model)

    monkeypatch.setattr(body, "parse", slow)
    with ThreadPoolExecutor(1) as clients:
        long = clients.submit(server.post, PATH, json=CHAT | LONG, timeout=60)
        try:
            assert seen.wait(60)
            assert server.get("/health").status_code == 200
        finally:
            go_on.set()
        assert long.result().status_code == 200
