"""A client that runs in the cluster and never pauses: streams of chat completions, each checked.

    python3 streams.py URL MODEL WORKERS        until /tmp/stop exists, then a summary

It needs nothing but the standard library, so it runs in any image with Python. Each stream must
have status 200, a finish reason, the usage and `[DONE]`. Answers to the same question are counted,
as they are greedy: a stream that went on elsewhere must read as if nothing had happened. Every
failure is one line of JSON, and the last line is the summary.
"""

import collections
import http.client
import json
import pathlib
import socket
import sys
import threading
import time
import urllib.parse

STOP = pathlib.Path("/tmp/stop")
QUESTIONS = ("How do plants make food?", "What is a page of memory?", "Count from one to twenty.")
MAX_TOKENS = 48
SILENCE_SECONDS = 120.0
lock = threading.Lock()
answers: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
completed = 0
failed = 0


def say(**values: object) -> None:
    """One line of JSON, whole also beside other threads'."""
    with lock:
        print(json.dumps({"at": round(time.time(), 3), **values}), flush=True)


def ask(url: urllib.parse.SplitResult, model: str, question: str) -> str:
    """The text of one streamed answer. Raises for anything that is not as it must be."""
    assert url.hostname is not None
    connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=SILENCE_SECONDS)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_completion_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Content-Type": "application/json"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read(500)!r}")
        return read_stream(response)
    finally:
        connection.close()


def read_stream(response: http.client.HTTPResponse) -> str:
    """The text of an event stream."""
    text, reason, usage = "", None, None
    for line in response:
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            if reason is None or usage is None:
                raise ValueError(f"the stream had no {'end' if reason is None else 'usage'}")
            if not 0 < usage["completion_tokens"] <= MAX_TOKENS:
                raise ValueError(f"impossible usage {usage}")
            return text
        chunk = json.loads(data)
        if "error" in chunk:
            raise ValueError(f"an error in the stream: {chunk['error']}")
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
    raise ValueError(f"the stream was cut off after {text!r}")


def work(number: int, url: urllib.parse.SplitResult, model: str) -> None:
    """Asks one question after another until told to stop."""
    global completed, failed
    count = number
    while not STOP.exists():
        question = QUESTIONS[count % len(QUESTIONS)]
        count += 1
        try:
            text = ask(url, model, question)
        except (OSError, ValueError, http.client.HTTPException) as error:
            say(failed=f"{type(error).__name__}: {error}", question=question)
            with lock:
                failed += 1
            time.sleep(0.5)
        else:
            with lock:
                completed += 1
                answers[question][text] += 1


def wait_for_the_address(url: urllib.parse.SplitResult) -> None:
    """Until connections are taken: a node hears of a Service's new endpoints a moment after them.
    Raises OSError if that takes a minute."""
    for seconds_left in range(60, -1, -1):
        try:
            socket.create_connection((url.hostname, url.port or 80), timeout=5).close()
            return
        except OSError:
            if seconds_left == 0:
                raise
            time.sleep(1)


def main() -> None:
    """See the module."""
    url, model, workers = urllib.parse.urlsplit(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    wait_for_the_address(url)
    threads = [threading.Thread(target=work, args=(i, url, model)) for i in range(workers)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(2)
        say(completed=completed, failed=failed)
    say(summary={"completed": completed, "failed": failed, "answers": answers})


if __name__ == "__main__":
    main()
