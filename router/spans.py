"""OpenTelemetry spans, one a request, exported if `OTEL_EXPORTER_OTLP_ENDPOINT` is set.

A span is made from a request's record once it is over, so that tracing costs a request nothing
while it runs. Attributes follow OpenTelemetry's conventions for HTTP and for generative AI.
"""

import logging
import os
from typing import TYPE_CHECKING, Protocol

from pagelet.router.record import RequestRecord
from pagelet.router.tracing import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_SERVER_ERROR = 500

_log = logging.getLogger(__name__)


class Spans(Protocol):
    """Where the spans of requests go."""

    def add(self, record: RequestRecord, trace: TraceContext) -> None:
        """The span of a request that is over."""

    def close(self) -> None:
        """Sends what is left."""


class NoSpans:
    """Nowhere."""

    def add(self, record: RequestRecord, trace: TraceContext) -> None:
        """See `Spans`."""

    def close(self) -> None:
        """See `Spans`."""


class ExportedSpans:
    """To a collector, in batches, from a thread of their own."""

    def __init__(self, exporter: "SpanExporter | None" = None) -> None:
        """By default the exporter is OTLP over HTTP, set up by OpenTelemetry's own variables.
        Raises `ImportError` without its packages."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        name = os.environ.get("OTEL_SERVICE_NAME", "pagelet-router")
        self._resource = Resource.create({"service.name": name})
        self._processor = BatchSpanProcessor(exporter or OTLPSpanExporter())

    def add(self, record: RequestRecord, trace: TraceContext) -> None:
        """See `Spans`. Spans of traces that their client does not sample are left out."""
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(span_id: str, *, remote: bool) -> SpanContext:
            flags = TraceFlags(int(trace.flags, 16))
            return SpanContext(int(trace.trace_id, 16), int(span_id, 16), remote, flags)

        def nanoseconds(seconds: float) -> int:
            return int((record.arrived + seconds) * 1e9)

        failed = record.status >= _SERVER_ERROR or bool(record.error and record.status == 200)
        span = ReadableSpan(
            name=f"{record.method} {record.path}",
            context=context(trace.span_id, remote=False),
            parent=None if trace.parent_id is None else context(trace.parent_id, remote=True),
            resource=self._resource,
            attributes=_attributes(record),
            events=[
                Event(event.what, {"detail": event.detail}, nanoseconds(event.at))
                for event in record.timeline
            ],
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=nanoseconds(0),
            end_time=nanoseconds(record.seconds or 0),
        )
        self._processor.on_end(span)

    def close(self) -> None:
        """See `Spans`."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def make_spans() -> Spans:
    """What the environment asks for."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return NoSpans()
    try:
        return ExportedSpans()
    except ImportError as error:
        _log.warning("no spans are sent: %s; install pagelet[otel]", error)
        return NoSpans()


def _attributes(record: RequestRecord) -> dict[str, str | int | float]:
    attributes: dict[str, str | int | float] = {
        "http.request.method": record.method,
        "url.path": record.path,
        "http.response.status_code": record.status,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "pagelet.request_id": record.request_id,
        "pagelet.tenant": record.tenant,
        "pagelet.waited_seconds": record.waited_seconds,
        "pagelet.retries": record.retries,
        "pagelet.resumes": record.resumes,
    }
    if record.error:
        attributes["error.type"] = record.error
    if record.ttft_seconds is not None:
        attributes["pagelet.ttft_seconds"] = record.ttft_seconds
    if record.cached_tokens is not None:
        attributes["pagelet.cached_tokens"] = record.cached_tokens
    if record.attempts:
        last = record.attempts[-1]
        attributes["pagelet.replica"] = last.replica_id
        attributes["pagelet.predicted_hit_tokens"] = last.predicted_hit_tokens
    return attributes
