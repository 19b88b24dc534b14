"""Spans as a collector gets them."""

import http.server
import queue
import threading

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.fleet import MODEL, replica, router, running

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector():
    """Its URL, and the bodies that it is sent."""
    bodies = queue.Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            bodies.put((self.path, self.headers.get("content-encoding"), body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
        server.shutdown()


def test_a_request_is_sent_to_the_collector_as_a_span(tmp_path, collector, monkeypatch):
    url, bodies = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    config = {
        "models": [{"name": MODEL, "pools": [{"replicas": ["http://127.0.0.1:9"]}]}],
        "proxy": {"queue_timeout": 0.1},
    }
    with running(router(tmp_path / "log", config), "/health") as gate:
        answer = httpx.post(
            f"{gate.url}/v1/completions",
            json={"model": MODEL, "prompt": "secret words"},
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
            timeout=60,
        )
        assert answer.status_code == 503
        path, encoding, body = bodies.get(timeout=60)
    assert (path, encoding) == ("/v1/traces", None)
    assert b"secret words" not in body
    sent = ExportTraceServiceRequest.FromString(body).resource_spans[0]
    resource = {item.key: item.value.string_value for item in sent.resource.attributes}
    assert resource["service.name"] == "pagelet-router"
    (span,) = sent.scope_spans[0].spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert span.name == "POST /v1/completions"
    attributes = {item.key: item.value for item in span.attributes}
    assert attributes["http.response.status_code"].int_value == 503
    assert attributes["gen_ai.request.model"].string_value == MODEL
    assert attributes["error.type"].string_value == "no_replica"


def test_one_trace_leads_from_the_client_to_the_steps_of_the_engine(
    tmp_path, collector, monkeypatch
):
    url, bodies = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    options = ("--otlp-traces-endpoint", f"{url}/v1/traces")
    with running(replica(tmp_path / "replica.log", *options)) as backend:
        config = {"models": [{"name": MODEL, "pools": [{"replicas": [backend.url]}]}]}
        with running(router(tmp_path / "log", config)) as gate:
            answer = httpx.post(
                f"{gate.url}/v1/completions",
                json={"model": MODEL, "prompt": "secret words " * 40, "max_tokens": 5, "n": 2},
                headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
                timeout=60,
            )
            assert answer.status_code == 200
            usage = answer.json()["usage"]
            spans = []
            while len(spans) < 1 + 1 + 2 * 3:
                body = bodies.get(timeout=60)[2]
                assert b"secret words" not in body
                for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
                    (name,) = (
                        item.value.string_value
                        for item in sent.resource.attributes
                        if item.key == "service.name"
                    )
                    spans += [(name, span) for span in sent.scope_spans[0].spans]
    assert {span.trace_id.hex() for _, span in spans} == {TRACE}
    (of_router,) = (span for name, span in spans if name == "pagelet-router")
    of_agent = [span for name, span in spans if name == "pagelet-agent"]
    (request,) = (span for span in of_agent if span.name == "POST /v1/completions")
    assert of_router.parent_span_id.hex() == PARENT
    assert request.parent_span_id == of_router.span_id
    parts = [span for span in of_agent if span is not request]
    assert sorted(span.name for span in parts) == sorted(["queue", "prefill", "decode"] * 2)
    assert {span.parent_span_id for span in parts} == {request.span_id}
    assert len({span.span_id for span in parts}) == 6

    def attribute(span, name):
        (value,) = (item.value for item in span.attributes if item.key == name)
        return value

    assert attribute(request, "gen_ai.usage.input_tokens").int_value == usage["prompt_tokens"]
    assert attribute(request, "gen_ai.usage.output_tokens").int_value == usage["completion_tokens"]
    for index in range(2):
        queue_, prefill, decode = (
            next(
                span
                for span in parts
                if span.name == name and attribute(span, "pagelet.answer").int_value == index
            )
            for name in ("queue", "prefill", "decode")
        )
        assert queue_.end_time_unix_nano == prefill.start_time_unix_nano
        assert prefill.end_time_unix_nano == decode.start_time_unix_nano
        assert request.start_time_unix_nano <= queue_.start_time_unix_nano
        assert decode.end_time_unix_nano <= request.end_time_unix_nano
        first = attribute(prefill, "gen_ai.latency.time_to_first_token").double_value
        assert first == pytest.approx(
            (prefill.end_time_unix_nano - queue_.start_time_unix_nano) / 1e9, abs=1e-5
        )
