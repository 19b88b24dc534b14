"""W3C trace context (https://www.w3.org/TR/trace-context/): passed on, or begun here."""

import dataclasses
import re
import secrets
from typing import Final

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = "01"
"""Of traces that begin here: whoever records spans may record this one's."""


@dataclasses.dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a request's span stands in its trace."""

    trace_id: str
    span_id: str
    """Of the router's own span, the parent of the replica's."""
    parent_id: str | None
    """Of the client's span; None if the trace begins here."""
    flags: str
    state: str | None

    @classmethod
    def receive(cls, traceparent: str | None, tracestate: str | None) -> "TraceContext":
        """From a client's headers; what is not valid is taken as absent, as the standard says."""
        match = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
        span_id = secrets.token_hex(8)
        if match is None:
            return cls(secrets.token_hex(16), span_id, None, _SAMPLED, None)
        version, trace_id, parent_id, flags, rest = match.groups()
        invalid = version == "ff" or (version == "00" and rest is not None)
        if invalid or not int(trace_id, 16) or not int(parent_id, 16):
            return cls(secrets.token_hex(16), span_id, None, _SAMPLED, None)
        return cls(trace_id, span_id, parent_id, flags, tracestate or None)

    def headers(self) -> list[tuple[str, str]]:
        """What replicas are sent, in place of what the client sent."""
        headers = [("traceparent", f"00-{self.trace_id}-{self.span_id}-{self.flags}")]
        if self.state is not None:
            headers.append(("tracestate", self.state))
        return headers
