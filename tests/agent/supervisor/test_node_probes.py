"""A node that is not the head has its head's probes, and names the head to all who ask for more."""

import logging
import socket
from collections.abc import Iterator

import httpx
import pytest

from pagelet.agent.supervisor.node_probes import NodeProbes
from pagelet.process.listener import bind


@pytest.fixture
def node() -> Iterator[str]:
    """The URL of a node that is not ready."""
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with NodeProbes(listener, lambda: False, 1, "10.1.2.3"):
        yield f"http://127.0.0.1:{port}"


def test_probes_have_the_heads_paths(node: str) -> None:
    paths = {"/health": 200, "/ready?verbose": 503, "/metrics": 200, "/v1/models": 404}
    assert {path: httpx.get(node + path).status_code for path in paths} == paths


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "BREW"])
def test_whatever_asks_for_more_is_sent_to_the_head(
    node: str, method: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = "/v1/chat/completions"
    content = b"x" * 500_000 if method == "POST" else b""
    with caplog.at_level(logging.INFO, "pagelet.access"):
        answer = httpx.request(method, node + path, content=content)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    if method != "HEAD":
        error = answer.json()["error"]
        assert error["code"] == "not_the_head"
        assert "node 1" in error["message"]
        assert "10.1.2.3" in error["message"]
    [record] = caplog.records
    told = vars(record)
    assert (told["method"], told["path"], told["status"]) == (method, path, 404)
    assert capfd.readouterr().err == "", "http.server's own lines"


def test_other_apis_have_their_own_shape(node: str) -> None:
    body = httpx.post(f"{node}/v1/messages", json={}).json()
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")


@pytest.mark.parametrize("head", [b"nothing\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_no_http_has_a_json_answer_too(
    node: str, head: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(node).port)) as connection:
        connection.sendall(head)
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert answer.rpartition(b"\r\n")[2].startswith(b'{"error":')
    assert capfd.readouterr().err == ""
