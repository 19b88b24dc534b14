"""Spans as a collector gets them."""

import http.server
import queue
import threading

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.fleet import MODEL, router, running

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
