"""Which headers a proxy passes on (RFC 9110, section 7.6.1), and which are its own to set."""

from collections.abc import Iterable
from typing import Final

from pagelet.protocol.openai.routing import TENANT_HEADER
from pagelet.router.upstream.connection import Headers

_HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate"),
        *(b"proxy-authorization", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
_FROM_CLIENTS: Final = _HOP_BY_HOP | {
    *(b"host", b"content-length", b"expect"),
    # The router's own: what it has found out, its key, and bodies that it can read.
    *(
        b"authorization",
        b"x-api-key",
        b"x-request-id",
        b"traceparent",
        b"tracestate",
        b"accept-encoding",
        TENANT_HEADER.encode(),
    ),
}
_FROM_REPLICAS: Final = _HOP_BY_HOP | {
    *(b"content-length", b"date", b"server", b"x-request-id", b"x-pagelet-replica"),
}


def from_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What replicas get to see of a request's headers."""
    return _without(headers, _FROM_CLIENTS)


def from_replica(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What clients get to see of an answer's headers."""
    return [
        (name, value)
        for name, value in _without(headers, _FROM_REPLICAS)
        if not name.startswith(b"x-ratelimit-")  # the replica's limits are on the router
    ]


def _without(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Headers:
    headers = list(headers)
    named = b",".join(value for name, value in headers if name == b"connection")
    if named:
        dropped = dropped | {name.strip().lower() for name in named.split(b",")}
    return [(name, value) for name, value in headers if name not in dropped]
