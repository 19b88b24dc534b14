"""Streams as a client receives them, and what of them must be the same however they came."""

import asyncio
import dataclasses
import json
from typing import Any

import httpx

from support.fleet import MODEL


@dataclasses.dataclass
class Received:
    """One streamed answer, all chunks together."""

    status: int
    replica: str | None = None
    texts: dict[int, str] = dataclasses.field(default_factory=dict)
    ends: dict[int, tuple[str, Any]] = dataclasses.field(default_factory=dict)
    logprobs: dict[int, list[Any]] = dataclasses.field(default_factory=dict)
    roles: dict[int, int] = dataclasses.field(default_factory=dict)
    ids: set[tuple[str, int, str]] = dataclasses.field(default_factory=set)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    done: bool = False

    def take(self, line: str) -> None:
        assert not line.startswith(":"), "the journal is not the client's"
        if not line:
            return
        assert line.startswith("data: "), line
        assert not self.done
        if line == "data: [DONE]":
            self.done = True
            return
        chunk = json.loads(line[6:])
        if "error" in chunk:
            self.error = chunk["error"]
            return
        self.ids.add((chunk["id"], chunk["created"], chunk["model"]))
        if chunk.get("usage"):
            self.usage = chunk["usage"]
        for choice in chunk["choices"]:
            index = choice["index"]
            delta = choice.get("delta") or {"content": choice.get("text")}
            self.roles[index] = self.roles.get(index, 0) + ("role" in delta)
            self.texts[index] = self.texts.get(index, "") + (delta.get("content") or "")
            if choice["logprobs"]:
                self.logprobs.setdefault(index, []).append(choice["logprobs"])
            if choice["finish_reason"]:
                assert index not in self.ends
                self.ends[index] = choice["finish_reason"], choice.get("stop_reason")

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and self.done and self.error is None and len(self.ids) == 1

    @property
    def answer(self) -> tuple[Any, ...]:
        """What must be the same, whatever replicas it came from, and however it was cut."""
        usage = dict(self.usage or {})
        usage.pop("prompt_tokens_details", None)
        flat = {
            index: [entry for part in parts for entry in _entries(part)]
            for index, parts in self.logprobs.items()
        }
        return self.texts, self.ends, self.roles, flat, usage


def _entries(logprobs: dict[str, Any]) -> list[Any]:
    """Of chat; or of completions, where the parallel lists become entries."""
    if "content" in logprobs:
        return list(logprobs["content"])
    return list(
        zip(
            logprobs["tokens"],
            logprobs["token_logprobs"],
            logprobs["top_logprobs"],
            logprobs["text_offset"],
            strict=True,
        )
    )


def request(number: int, max_tokens: int = 150) -> tuple[str, dict[str, Any]]:
    """Path and body of one of many different requests: several answers, logprobs, stop strings,
    penalties, an echoed prompt, chat and completions, all sampled with a seed."""
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": max_tokens,
        "temperature": 1.0,
        "seed": number,
        "stream": True,
        "stream_options": {"include_usage": number % 2 == 0},
    }
    kind = number % 6
    if kind == 1:
        body |= {"n": 2}
    elif kind == 2:
        body |= {"stop": ["ing", "zz"], "min_tokens": 20}
    elif kind == 3:
        body |= {"presence_penalty": 0.5, "frequency_penalty": 0.5, "ignore_eos": True}
    if kind in (4, 5):
        prompt: Any = [f"Once upon a time {number}", "There was"] if kind == 5 else f"Say {number}"
        return "/v1/completions", body | {"prompt": prompt, "logprobs": 2, "echo": kind == 4}
    if kind == 0:
        body |= {"logprobs": True, "top_logprobs": 2}
    messages = [{"role": "user", "content": f"Question {number}: why?"}]
    return "/v1/chat/completions", body | {"messages": messages}


async def receive(client: httpx.AsyncClient, url: str, path: str, body: Any) -> Received:
    """Reads one stream to its end."""
    async with client.stream("POST", url + path, json=body) as response:
        received = Received(response.status_code, response.headers.get("x-pagelet-replica"))
        if response.status_code != 200:
            received.error = json.loads(await response.aread())["error"]
            return received
        async for line in response.aiter_lines():
            received.take(line)
    return received


async def receive_all(url: str, numbers: range, max_tokens: int = 150) -> list[Received]:
    """Many at once."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        jobs = (receive(client, url, *request(number, max_tokens)) for number in numbers)
        return await asyncio.gather(*jobs)
