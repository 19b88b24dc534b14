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
    """Of the span of whoever received the request, the parent of those after it."""
    parent_id: str | None
    """Of the client's span; None if the trace begins here."""
    flags: str
    state: str | None

    @classmethod
    def receive(cls, traceparent: str | None, tracestate: str | None) -> "TraceContext":
        """From a client's headers; what is not valid is taken as absent, as the standard says."""
        match = _TRACEPARENT.fullmatch(traceparent.strip()) if traceparent else None
        span_id = new_span_id()
        if match is None:
            return cls(secrets.token_hex(16), span_id, None, _SAMPLED, None)
        version, trace_id, parent_id, flags, rest = match.groups()
        invalid = version == "ff" or (version == "00" and rest is not None)
        if invalid or not int(trace_id, 16) or not int(parent_id, 16):
            return cls(secrets.token_hex(16), span_id, None, _SAMPLED, None)
        return cls(trace_id, span_id, parent_id, flags, tracestate or None)

    @property
    def sampled(self) -> bool:
        """Whether its spans are to be recorded."""
        return bool(int(self.flags, 16) & 1)

    def child(self) -> "TraceContext":
        """Of a part of this span."""
        return TraceContext(self.trace_id, new_span_id(), self.span_id, self.flags, self.state)

    def headers(self) -> list[tuple[str, str]]:
        """What goes to the next server, in place of what came."""
        headers = [("traceparent", f"00-{self.trace_id}-{self.span_id}-{self.flags}")]
        if self.state is not None:
            headers.append(("tracestate", self.state))
        return headers


def new_span_id() -> str:
    """A random one."""
    return secrets.token_hex(8)
