"""Requests spelled as some clients do and most do not."""

import json
import socket

import pytest

from .conftest import DIRECT_AND_ROUTED

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PATH = "/v1/chat/completions"


@DIRECT_AND_ROUTED
@pytest.mark.parametrize("stream", [False, True])
def test_clients_of_http_1_0_get_no_chunks(server, stream):
    body = json.dumps(CHAT | {"stream": stream}).encode()
    head = b"POST %b HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
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
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(head % (PATH.encode(), len(body)) + body)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert (b"data: [DONE]" in answer) == stream
    assert b"!" in answer  # the last of its text
    server.wait_until(lambda: not server.llm.running)
    assert not server.llm.aborted


@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity"])
def test_numbers_that_json_does_not_have(server, number):
    content = json.dumps(CHAT)[:-1] + f', "temperature": {number}}}'
    response = server.post(PATH, content=content)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "temperature"


@pytest.mark.parametrize("number", ["1e400", "NaN", "-Infinity", "1" * 250 + "e99"])
def test_nor_are_they_taken_where_anything_goes(server, number):
    content = json.dumps(CHAT)[:-1] + f', "chat_template_kwargs": {{"x": [{number}]}}}}'
    response = server.post(PATH, content=content)
    assert response.status_code == 400
    assert "We could not parse the JSON body" in response.json()["error"]["message"]
    content = content.replace(number, json.dumps(f"{number} is text"))
    assert server.post(PATH, content=content).status_code == 200
