"""One streamed answer, from inside of the cluster: `python3 -c THIS '{"url": ..., ...}'`.

The last line that it prints is JSON with the whole text.
"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request


def answer_to(request: urllib.request.Request) -> http.client.HTTPResponse:
    """The answer that begins, once connections are taken: a node hears of a Service's new endpoints
    a moment after them. Raises `URLError` if that takes a minute."""
    seconds_left = 60
    while True:
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=120)
            return answer
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            if seconds_left == 0:
                raise
            seconds_left -= 1
            time.sleep(1)


def main() -> None:
    """See the module."""
    asked = json.loads(sys.argv[1])
    body = {
        "model": asked["model"],
        "messages": [{"role": "user", "content": asked["question"]}],
        "temperature": 0,
        "max_completion_tokens": asked["max_tokens"],
        "stream": True,
    }
    request = urllib.request.Request(
        f"{asked['url']}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    text = ""
    with answer_to(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    print(json.dumps({"text": text}))


if __name__ == "__main__":
    main()
