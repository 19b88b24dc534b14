"""What a node that is not the head answers to the probes that the head's server answers itself."""

import http.server
import socket
import threading
from collections.abc import Callable
from types import TracebackType


class NodeProbes:
    """While entered, `GET /health` has status 200, `/ready` that or 503, and `/metrics` nothing to
    tell, at a listening socket. Requests for the model are the head's to answer."""

    def __init__(self, listener: socket.socket, is_ready: Callable[[], bool]) -> None:
        """`is_ready` is called from threads."""

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                known = path in ("/health", "/ready", "/metrics")
                status = 404 if not known else 503 if path == "/ready" and not is_ready() else 200
                self.send_response_only(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", "0")
                self.end_headers()

        address = listener.getsockname()[:2]
        self._server = http.server.ThreadingHTTPServer(address, Handler, bind_and_activate=False)
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
