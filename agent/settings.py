"""What the API server needs to know beside the engine's options: one typed object."""

from typing import Annotated, Literal

import msgspec

from pagelet.protocol.config import LogLevel as LogLevel
from pagelet.protocol.config import ToolCallParser as ToolCallParser

LogFormat = Literal["text", "json"]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]


class ServeSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The server's side of `pagelet serve`."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` or `::` for all."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    """TCP port; 0 takes a free one."""
    api_keys: list[str] = []
    """Keys that requests may present as `Authorization: Bearer KEY`. With no key and no file the
    server asks for none."""
    api_key_file: str | None = None
    """A file with one key a line, `#` starts a comment; read again whenever it changes."""
    max_queue: Annotated[int, msgspec.Meta(ge=1)] = 1024
    """Most answers in flight, waiting or running; more get 429 with Retry-After."""
    rate_limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Most requests a minute of one API key, or of all clients together where there are no keys.
    None is no limit."""
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16 << 20
    """Largest request body; larger ones get 413."""
    response_store: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Most bytes of responses that are kept for clients that ask for it; None keeps none."""
    cors_origins: list[str] = []
    """Origins that browsers may call from; none by default."""
    metric_aliases: bool = True
    """Expose metrics under names that vLLM dropped, too, as shipped dashboards still query them."""
    drain_timeout: NonNegativeFloat = 600.0
    """Most seconds that running requests get to finish after SIGTERM."""
    step_timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """An engine with work whose step counter stands still for this many seconds is hung."""
    tool_call_parser: ToolCallParser = "auto"
    """How the model writes calls of tools. auto: as its chat template teaches it; none: tools may
    not be offered to it."""
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector to which spans of requests are posted; None leaves it to
    OpenTelemetry's own variables."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    """json: one object a line, for log collectors."""
