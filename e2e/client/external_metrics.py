"""An adapter of external metrics for HorizontalPodAutoscalers: `python3 -c THIS PROMETHEUS`.

What is asked for is the sum over the series of that name, namespace and labels, or what that was
last, if it was within a minute. It listens at port 6443, with the certificate of `/secret`.
"""

import datetime
import http.server
import json
import ssl
import sys
import urllib.parse
import urllib.request
from typing import Any

GROUP = "external.metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"


def values(namespace: str, name: str, selector: str) -> list[dict[str, Any]]:
    """One value, or none where there is no series. `selector` is as in `a=b,c=d`."""
    labels = [pair.split("=") for pair in selector.split(",")]
    asked = ",".join(f'{label}="{value}"' for label, value in [("namespace", namespace), *labels])
    total = f"sum({name}{{{asked}}})"
    query = urllib.parse.urlencode({"query": f"{total} or last_over_time({total}[1m:5s])"})
    with urllib.request.urlopen(f"{sys.argv[1]}/api/v1/query?{query}", timeout=10) as answer:
        found = json.load(answer)["data"]["result"]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "metricName": name,
            "metricLabels": dict(labels),
            "timestamp": now,
            "value": f"{round(1000 * float(one['value'][1]))}m",
        }
        for one in found
    ]


class Questions(http.server.BaseHTTPRequestHandler):
    """Of the API server, for its clients."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """See the module."""
        asked = urllib.parse.urlsplit(self.path)
        parts = asked.path.strip("/").split("/")
        if len(parts) == 6:  # apis/GROUP/v1beta1/namespaces/NAMESPACE/NAME
            selector = dict(urllib.parse.parse_qsl(asked.query)).get("labelSelector", "")
            items = values(parts[4], parts[5], selector)
            told = {"kind": "ExternalMetricValueList", "apiVersion": VERSION, "items": items}
        else:
            told = {"kind": "APIResourceList", "groupVersion": VERSION, "resources": []}
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("", 6443), Questions)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/secret/tls.crt", "/secret/tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
