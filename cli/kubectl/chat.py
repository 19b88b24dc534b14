"""A conversation in a terminal, streamed."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from pagelet.cli.no_redirects import open_directly

Message = dict[str, str]


def talk(base: str, model: str, api_key: str | None, system: str | None) -> None:
    """Asks and answers until the end of the input."""
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    if sys.stdin.isatty():
        print(f"You talk to {model}. Ctrl-D ends it.")
    while (question := _read()) is not None:
        messages.append({"role": "user", "content": question})
        answer = ""
        try:
            for piece in stream(base, model, api_key, messages):
                answer += piece
                print(piece, end="", flush=True)
        except urllib.error.HTTPError as error:
            print(f"{error.code}: {_message(error.read())}", file=sys.stderr)
            messages.pop()
            continue
        except KeyboardInterrupt:  # ends the answer and not the conversation
            pass
        print()
        messages.append({"role": "assistant", "content": answer})


def stream(base: str, model: str, api_key: str | None, messages: list[Message]) -> Iterator[str]:
    """The pieces of an answer. Raises urllib.error.HTTPError."""
    body = json.dumps({"model": model, "messages": messages, "stream": True}).encode()
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(f"{base}/v1/chat/completions", body, headers)
    with open_directly(request) as response:
        for line in response:
            data = line.decode().strip().removeprefix("data: ")
            if line.startswith(b"data: ") and data != "[DONE]":
                yield _piece(json.loads(data))


def _piece(event: Any) -> str:
    if "error" in event:
        return f"\n[{event['error']['message']}]"
    choices = event["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""


def _read() -> str | None:
    """The next line; None at the end of the input."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
