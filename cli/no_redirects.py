"""Requests that go to one server and no other."""

import http.client
import urllib.request
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def open_directly(
    request: urllib.request.Request, timeout: float | None = None
) -> http.client.HTTPResponse:
    """As `urllib.request.urlopen`, but a redirect is an error with its status: a request's key is
    for the server that it was written for. Raises `urllib.error.URLError`."""
    opener = urllib.request.build_opener(_NoRedirects)
    answer: http.client.HTTPResponse = opener.open(request, timeout=timeout)
    return answer
