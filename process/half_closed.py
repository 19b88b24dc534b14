"""Clients that close their sending side after a request, and still wait for the answer.

A client that half-closes and one that went away look the same: both send a FIN. Only the latter
answers what it is sent afterwards with a reset.
"""

import socket
import sys
from typing import Final

from pagelet.process.lingering_close import LingeringProtocol

_PROBE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""May come any number of times before an answer (RFC 9110, section 15.2)."""
_FIRST_LOOK: Final = 0.005
_LAST_LOOK: Final = 1.0
_RESET: Final = 7
"""TCP_CLOSE of Linux' tcp_states.h."""


class HalfClosedProtocol(LingeringProtocol):
    """Answers clients that half-close before their answer has begun. A client that closes later,
    or that speaks HTTP/1.0 and so knows no interim answers, counts as gone, as in nginx."""

    def eof_received(self) -> bool:  # type: ignore[override]
        """Of asyncio's protocol. Whether the connection stays open for writing."""
        cycle = self.cycle
        if (
            sys.platform != "linux"
            or cycle is None
            or cycle.more_body
            or cycle.response_started
            or self.pipeline
            or cycle.scope["http_version"] != "1.1"
            or self._socket.family not in (socket.AF_INET, socket.AF_INET6)
        ):
            return False
        cycle.keep_alive = False
        cycle.waiting_for_100_continue = False
        self.transport.write(_PROBE)
        self.loop.call_later(_FIRST_LOOK, self._look, _FIRST_LOOK)
        return True

    @property
    def _socket(self) -> socket.socket:
        found: socket.socket = self.transport.get_extra_info("socket")
        return found

    def _look(self, waited: float) -> None:
        """Whether the client has answered with a reset; nobody else would tell, as nothing is read
        any more."""
        if self.transport.is_closing():
            return
        if self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _RESET:
            self.transport.abort()
            return
        self.loop.call_later(min(2 * waited, _LAST_LOOK), self._look, min(2 * waited, _LAST_LOOK))
