"""Workloads from files: traces of production traffic, and collections of conversations."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from pagelet.bench.load.vocabulary import Vocabulary
from pagelet.bench.load.workload import Content, Session, Turn, Workload
from pagelet.text.tokenizer import Tokenizer

TRACE_BLOCK_TOKENS = 512
_TOKENS_PER_WORD = 4 / 3
_PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class TraceEntry(msgspec.Struct):
    """A line of a trace in the format that Mooncake published (arXiv 2407.00079)."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    """Milliseconds."""
    input_length: _PositiveInt
    output_length: _PositiveInt
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]] = []
    """One for each 512 tokens: prompts share a prefix as far as their ids agree."""


def read_trace(
    path: Path,
    vocabulary: Vocabulary,
    seed: int,
    *,
    limit: int | None = None,
    speed: float = 1.0,
    max_input_len: int | None = None,
) -> Workload:
    """Requests at the times, of the lengths and with the shared prefixes of a trace in JSON lines.

    `speed` 2.0 replays it in half the time; longer prompts are cut to `max_input_len`. Raises
    `ValueError` with the line that is wrong, and `OSError`.
    """
    sessions: list[Session] = []
    start = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if len(sessions) == limit:
                break
            if not line.strip():
                continue
            try:
                entry = msgspec.json.decode(line, type=TraceEntry)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            start = entry.timestamp if start is None else start
            content = _trace_content(entry, vocabulary, seed, number, max_input_len)
            arrival = max(0.0, entry.timestamp - start) / 1e3 / speed
            sessions.append(Session((Turn(content, entry.output_length),), arrival))
    if not sessions:
        raise ValueError(f"{path}: has no requests")
    parameters = {
        "file": path.name,
        "sessions": len(sessions),
        "speed": speed,
        "max_input_len": max_input_len,
        "seed": seed,
    }
    return Workload("trace", tuple(sessions), parameters)


def _trace_content(
    entry: TraceEntry, vocabulary: Vocabulary, seed: int, number: int, max_input_len: int | None
) -> Content:
    wanted = min(entry.input_length, max_input_len or entry.input_length)
    parts: list[Content] = []
    for hash_id in entry.hash_ids:
        if wanted <= 0:
            break
        # The whole block is drawn even if only its beginning is used, so that prefixes agree.
        block = vocabulary.draw(np.random.default_rng([seed, 0, hash_id]), TRACE_BLOCK_TOKENS)
        parts.append(block if wanted >= TRACE_BLOCK_TOKENS else _beginning(block, wanted))
        wanted -= TRACE_BLOCK_TOKENS
    if wanted > 0:
        parts.append(vocabulary.draw(np.random.default_rng([seed, 1, number]), wanted))
    content = parts[0]
    for part in parts[1:]:
        content = content + part  # type: ignore[operator]
    return content


def _beginning(content: Content, num_tokens: int) -> Content:
    if isinstance(content, tuple):
        return content[:num_tokens]
    return "".join(f" {word}" for word in content.split()[:num_tokens])


def read_conversations(
    path: Path, tokenizer: Tokenizer | None, seed: int, *, limit: int | None = None
) -> Workload:
    """First questions of a ShareGPT-like file, in an order drawn by `seed`: each asks for as many
    tokens as the answer in the file has (by the tokenizer, else estimated from its words).

    The file is a JSON list, or JSON lines, of `{"conversations": [{"from", "value"}, ...]}`;
    `messages` with `role` and `content` will do too. Raises `ValueError` and `OSError`.
    """
    exchanges = [pair for entry in _entries(path) if (pair := _first_exchange(entry))]
    if not exchanges:
        raise ValueError(f"{path}: has no conversation with a question and an answer")
    order = np.random.default_rng(seed).permutation(len(exchanges))[:limit]
    sessions = []
    for index in order:
        question, answer = exchanges[index]
        if tokenizer is None:
            num_tokens = round(len(answer.split()) * _TOKENS_PER_WORD)
        else:
            num_tokens = len(tokenizer.encode(answer, add_special_tokens=False))
        sessions.append(Session((Turn(question, max(1, num_tokens)),)))
    parameters = {"file": path.name, "sessions": len(sessions), "seed": seed}
    return Workload("sharegpt", tuple(sessions), parameters)


def _entries(path: Path) -> Iterator[Any]:
    text = path.read_text(encoding="utf-8")
    try:
        if text.lstrip()[:1] == "[":
            yield from json.loads(text)
            return
        for line in text.split("\n"):  # JSON may have other line ends within its strings
            if line.strip():
                yield json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON: {error}") from None


def _first_exchange(entry: Any) -> tuple[str, str] | None:
    if not isinstance(entry, dict):
        return None
    turns = entry.get("conversations") or entry.get("messages")
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    texts = [
        turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        for turn in turns[:2]
    ]
    question, answer = texts
    if not (isinstance(question, str) and isinstance(answer, str)):
        return None
    return (question, answer) if question.strip() and answer.strip() else None
