import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.process.spans import SpanSink, open_sink
from pagelet.protocol.trace_context import TraceContext
from pagelet.router.record import RequestRecord
from pagelet.router.routing.types import Decision
from pagelet.router.spans import SERVICE_NAME, span_of

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_trace_goes_on_with_a_span_of_the_router():
    context = TraceContext.receive(f"00-{TRACE}-{PARENT}-01", "vendor=value")
    assert (context.trace_id, context.parent_id, context.flags) == (TRACE, PARENT, "01")
    assert context.span_id != PARENT
    assert context.headers() == [
        ("traceparent", f"00-{TRACE}-{context.span_id}-01"),
        ("tracestate", "vendor=value"),
    ]


def test_a_later_version_of_the_standard_is_understood():
    assert TraceContext.receive(f"cc-{TRACE}-{PARENT}-00-more", None).trace_id == TRACE


@pytest.mark.parametrize(
    "traceparent",
    [
        *(None, "", "nonsense", f"00-{TRACE}-{PARENT}", f"00-{TRACE.upper()}-{PARENT}-01"),
        *(f"ff-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01-more", f"00-{'0' * 32}-{PARENT}-01"),
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_what_is_not_valid_begins_a_trace(traceparent):
    context = TraceContext.receive(traceparent, "vendor=value")
    assert context.trace_id != TRACE
    assert context.parent_id is None
    ((name, value),) = context.headers()
    assert name == "traceparent"
    assert TraceContext.receive(value, None).trace_id == context.trace_id


@given(st.text())
def test_no_header_breaks_it(traceparent):
    assert TraceContext.receive(traceparent, traceparent).headers()


def finished(status=200, **fields):
    record = RequestRecord(request_id="r", trace_id=TRACE, method="POST", path="/v1/x", **fields)
    record.decided(Decision("http://a", "why", 64, 0.5)).outcome = "completed"
    record.note("first_byte")
    record.status, record.seconds = status, 1.5
    return record


class Collected:
    """An exporter that keeps what it is given."""

    def __init__(self):
        self.spans = []

    def export(self, exported):
        self.spans += exported

    def shutdown(self):
        self.closed = True


def test_a_request_becomes_a_span():
    collected = Collected()
    exported = SpanSink(SERVICE_NAME, exporter=collected)
    trace = TraceContext.receive(f"00-{TRACE}-{PARENT}-01", None)
    exported.add(span_of(finished(model="m", prompt_tokens=100, cached_tokens=48), trace))
    exported.add(span_of(finished(503, error="no_replica"), trace))
    unsampled = TraceContext.receive(f"00-{TRACE}-{PARENT}-00", None)
    exported.add(span_of(finished(), unsampled))
    exported.close()
    assert collected.closed
    good, bad = collected.spans
    assert f"{good.context.trace_id:032x}" == TRACE
    assert f"{good.context.span_id:016x}" == trace.span_id
    assert f"{good.parent.span_id:016x}" == PARENT
    assert good.end_time - good.start_time == pytest.approx(1.5e9, rel=1e-3)
    assert good.attributes["gen_ai.usage.input_tokens"] == 100
    assert good.attributes["pagelet.replica"] == "http://a"
    assert [event.name for event in good.events] == ["first_byte"]
    assert good.status.is_unset
    assert not bad.status.is_ok
    assert bad.attributes["error.type"] == "no_replica"
    assert good.resource.attributes["service.name"] == "pagelet-router"


def test_without_a_collector_there_are_no_spans(monkeypatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert open_sink(SERVICE_NAME) is None


def test_missing_packages_are_named(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace.export", None)
    with caplog.at_level(logging.WARNING):
        assert open_sink(SERVICE_NAME) is None
    assert "pagelet[otel]" in caplog.text
