"""The span of each request of a router. Attributes follow OpenTelemetry's conventions for HTTP and
for generative AI."""

from typing import Final

from pagelet.process.spans import Attribute, Span
from pagelet.protocol.trace_context import TraceContext
from pagelet.router.record import RequestRecord

SERVICE_NAME: Final = "pagelet-router"
_SERVER_ERROR: Final = 500


def span_of(record: RequestRecord, trace: TraceContext) -> Span:
    """Of a request that is over."""
    return Span(
        name=f"{record.method} {record.path}",
        trace=trace,
        start=record.arrived,
        end=record.arrived + (record.seconds or 0),
        attributes=_attributes(record),
        events=[(event.what, event.detail, record.arrived + event.at) for event in record.timeline],
        failed=record.status >= _SERVER_ERROR or bool(record.error and record.status == 200),
    )


def _attributes(record: RequestRecord) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
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
