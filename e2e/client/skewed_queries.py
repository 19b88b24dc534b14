"""A Prometheus as it looks to those whose clocks are ahead of it: `python3 -c THIS URL SECONDS`.

It listens at port 9090, and passes each query on as if it were asked `SECONDS` later.
"""

import datetime
import http.server
import sys
import urllib.parse
import urllib.request


class Queries(http.server.BaseHTTPRequestHandler):
    """Of its clients, which give the time of every query."""

    def do_GET(self) -> None:
        """See the module."""
        url, seconds = sys.argv[1], float(sys.argv[2])
        asked = urllib.parse.urlsplit(self.path)
        values = dict(urllib.parse.parse_qsl(asked.query))
        time = datetime.datetime.fromisoformat(values["time"]).timestamp()
        query = urllib.parse.urlencode(values | {"time": str(time + seconds)})
        with urllib.request.urlopen(f"{url}{asked.path}?{query}", timeout=10) as answer:
            told = answer.read()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("", 9090), Queries).serve_forever()
