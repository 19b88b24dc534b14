"""One streamed answer, from inside of the cluster: `python3 -c THIS '{"url": ..., ...}'`.

The last line that it prints is JSON with the whole text.
"""

import json
import sys
import urllib.request


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
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    print(json.dumps({"text": text}))


if __name__ == "__main__":
    main()
