"""Clients that post long bodies, as (url, bytes, whether in chunks) -> (status, answer)."""

import contextlib
import http.client
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx

PIECE = b" " * (1 << 16)


def _pieces(size: int) -> Iterator[bytes]:
    for _ in range(size // len(PIECE)):
        yield PIECE


def _headers(size: int, chunked: bool) -> dict[str, str]:
    return {"Content-Type": "application/json"} | ({} if chunked else {"Content-Length": str(size)})


def by_http_client(url: str, size: int, chunked: bool) -> tuple[int, bytes]:
    """Reads nothing until it has sent all."""
    address = urlsplit(url)
    client = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    with contextlib.closing(client):
        headers = _headers(size, chunked)
        client.request("POST", address.path, _pieces(size), headers, encode_chunked=chunked)
        response = client.getresponse()
        return response.status, response.read()


def by_httpx(url: str, size: int, chunked: bool) -> tuple[int, bytes]:
    """As the `openai` client sends."""
    response = httpx.post(url, content=_pieces(size), headers=_headers(size, chunked), timeout=60)
    return response.status_code, response.content


def by_curl(url: str, size: int, chunked: bool) -> tuple[int, bytes]:
    """Does not ask first whether it may send."""
    command = ["curl", "-sS", "-w", "%{http_code}", "--data-binary", "@-", "-H", "Expect:"]
    command += ["-H", "Content-Type: application/json"]
    command += ["-H", "Transfer-Encoding: chunked"] if chunked else []
    done = subprocess.run([*command, url], input=b" " * size, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout[-3:]), done.stdout[:-3]
