"""What a node that is not the head answers to the probes that the head's server answers itself, and
to requests that are for the head."""

import contextlib
import http.server
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import Any

from pagelet.protocol.anthropic.errors import error_body
from pagelet.protocol.openai.errors import ApiError

_PROBES = ("/health", "/ready", "/metrics")
_TIMEOUT_SECONDS = 5.0
_MOST_UNREAD = 1 << 20
"""Bytes of a refused request that are read and thrown away: a connection that is closed on a client
that still sends takes the answer away from it."""
log = logging.getLogger(__name__)
_access_log = logging.getLogger("pagelet.access")


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whatever ended a connection, such as its client's end: by default a trace on stderr."""
        log.debug("a connection of %s ended early", client_address, exc_info=True)


class NodeProbes:
    """While entered, `GET /health` has status 200, `/ready` that or 503, and `/metrics` nothing to
    tell, at a listening socket. Requests for the model are the head's to answer: they have status
    404 and the head's name."""

    def __init__(
        self, listener: socket.socket, is_ready: Callable[[], bool], rank: int, head: str
    ) -> None:
        """`is_ready` is called from threads; `rank` is this node's, and `head` the address of the
        node that serves, both for errors."""
        elsewhere = (
            f"This is node {rank} of a model on several machines, and only the head at {head} "
            "answers requests: send them to its --port"
        )

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = _TIMEOUT_SECONDS

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path not in _PROBES:
                    self._refuse(ApiError(404, elsewhere, code="not_the_head"))
                    return
                ready = path != "/ready" or is_ready()
                self._answer(200 if ready else 503, "text/plain; charset=utf-8", b"")

            def send_error(
                self, code: int, message: str | None = None, explain: str | None = None
            ) -> None:
                """For methods other than GET, and for what is no HTTP; by default a page of HTML
                and lines on stderr."""
                if code == HTTPStatus.NOT_IMPLEMENTED:
                    self._refuse(ApiError(404, elsewhere, code="not_the_head"))
                else:
                    self._refuse(ApiError(code, message or HTTPStatus(code).phrase))

            def log_message(self, format: str, *args: Any) -> None:
                log.debug(format, *args)

            def _refuse(self, error: ApiError) -> None:
                path = getattr(self, "path", "")
                extra = {
                    "method": ascii((self.command or "")[:20])[1:-1],
                    "path": ascii(path[:200])[1:-1],
                    "status": error.status,
                    "error": error.detail.code or error.detail.type,
                }
                _access_log.info("request", extra=extra)
                self.close_connection = True
                self._answer(error.status, "application/json", error_body(path, error))
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_WR)
                    left = _MOST_UNREAD
                    while left > 0 and (data := self.rfile.read1(left)):
                        left -= len(data)

            def _answer(self, status: int, media_type: str, body: bytes) -> None:
                self.send_response_only(status)
                self.send_header("Content-Type", media_type)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        address = listener.getsockname()[:2]
        self._server = _Server(address, Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._thread = threading.Thread(target=self._serve, name="probes", daemon=True)

    def __enter__(self) -> "NodeProbes":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.1)
