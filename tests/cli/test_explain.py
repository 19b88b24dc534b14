"""`pagelet explain` where there is nobody to ask."""

import socket
import threading

import pytest
from typer.testing import CliRunner

from pagelet.cli.explain import app


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "http://127.0.0.1:{}", "http://127.0.0.1:{}/v1/"])
def test_a_router_that_is_not_there_is_named(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = CliRunner().invoke(app, ["some-request", "--router", form.format(port)])
    assert result.exit_code == 1
    assert result.output == (
        f"Error: no router answers at http://127.0.0.1:{port} ([Errno 111] Connection refused); "
        "say where with --router URL\n"
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no router answers at {} (SSH-2.0-OpenSSH_9.6)"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", "no router answers at {} (Inc"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<html>no</html>",
            "what answers at {} is no router of this version (JSON is malformed",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            "what answers at {} is no router of this version (Object missing required field",
        ),
        (
            b"HTTP/1.1 302 Found\r\nLocation: {other}/v1/explain/x\r\nContent-Length: 0\r\n\r\n",
            "{} sends to {other}/v1/explain/x, which is not followed with a key; say where",
        ),
        (b"HTTP/1.1 308 Found\r\nContent-Length: 0\r\n\r\n", "{} sends to None, which is not"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n{}", "HTTP Error 404: Not Found"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_is_no_router_is_named(answer: bytes, words: str, options: list[str]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
    ):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        other = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"

        def answer_once() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer.replace(b"{other}", other.encode()))

        answering = threading.Thread(target=answer_once)
        answering.start()
        result = CliRunner().invoke(app, ["some-request", "--router", url, *options])
        answering.join()
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has come
            elsewhere.accept()
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {words.format(url, other=other)}")
    assert len(result.output.splitlines()) == 1
