"""OpenTelemetry spans to a collector, by OTLP over HTTP.

A span is made once what it tells of is over, so that tracing costs a request nothing while it runs.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pagelet.protocol.trace_context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_log = logging.getLogger(__name__)

Attribute = str | int | float


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A piece of work. Times are Unix seconds."""

    name: str
    trace: TraceContext
    """Its id, and its parent's."""
    start: float
    end: float
    attributes: Mapping[str, Attribute]
    events: Sequence[tuple[str, str, float]] = ()
    """What happened, a detail, and when."""
    failed: bool = False
    is_part: bool = False
    """Of another span of this process; else it is a request that came from elsewhere."""


class SpanSink:
    """To a collector, in batches, from a thread of their own."""

    def __init__(
        self,
        service: str,
        endpoint: str | None = None,
        exporter: "SpanExporter | None" = None,
    ) -> None:
        """`service` is what `OTEL_SERVICE_NAME` may replace; `endpoint` the whole URL to post to.
        What is not given is set up by OpenTelemetry's own variables. Raises `ImportError` without
        its packages."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        name = os.environ.get("OTEL_SERVICE_NAME", service)
        self._resource = Resource.create({"service.name": name})
        self._processor = BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint=endpoint))

    def add(self, span: Span) -> None:
        """Sends a span, unless its client does not want its trace sampled."""
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        trace = span.trace

        def context(span_id: str, *, remote: bool) -> SpanContext:
            flags = TraceFlags(int(trace.flags, 16))
            return SpanContext(int(trace.trace_id, 16), int(span_id, 16), remote, flags)

        parent = trace.parent_id
        made = ReadableSpan(
            name=span.name,
            context=context(trace.span_id, remote=False),
            parent=None if parent is None else context(parent, remote=not span.is_part),
            resource=self._resource,
            attributes=span.attributes,
            events=[
                Event(what, {"detail": detail}, _nanoseconds(at))
                for what, detail, at in span.events
            ],
            kind=SpanKind.INTERNAL if span.is_part else SpanKind.SERVER,
            status=Status(StatusCode.ERROR if span.failed else StatusCode.UNSET),
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
        )
        self._processor.on_end(made)

    def close(self) -> None:
        """Sends what is left."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def open_sink(service: str, endpoint: str | None = None) -> SpanSink | None:
    """To `endpoint`, or to what the environment names; None if neither does."""
    if endpoint is None and not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        return SpanSink(service, endpoint)
    except ImportError as error:
        _log.warning("no spans are sent: %s; install pagelet[otel]", error)
        return None
