"""The event counter sees the same events however the network cuts the bytes."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.bench.sse import BadStream, StreamCounter

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


def cut(data: bytes, points: list[int]) -> list[bytes]:
    bounds = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def chunked(parts: list[bytes]) -> bytes:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return framed + b"0\r\n\r\n"


def answer(texts: list[str]) -> bytes:
    events: list[dict[str, Any]] = [{"choices": [{"text": text}]} for text in texts]
    events.append({"choices": [], "usage": USAGE})
    lines = [b"data: " + json.dumps(event).encode() for event in events]
    return b"".join(line + b"\n\n" for line in [*lines, b"data: [DONE]"])


@given(
    texts=st.lists(st.text(max_size=20), max_size=20),
    chunk_points=st.lists(st.integers(0, 5000), max_size=20),
    network_points=st.lists(st.integers(0, 5000), max_size=20),
)
def test_any_cut_of_chunks_and_of_the_network_counts_every_event_once(
    texts: list[str], chunk_points: list[int], network_points: list[int]
) -> None:
    payload = answer(texts)
    counter = StreamCounter()
    counts = [
        counter.feed(piece)
        for piece in cut(HEAD + chunked(cut(payload, chunk_points)), network_points)
    ]
    assert sum(counts) == counter.num_events == len(texts) + 2
    assert counter.finished
    assert counter.usage() == USAGE


def test_byte_by_byte_an_event_counts_when_its_last_byte_is_there() -> None:
    payload = b"data: {}\n\ndata: [DONE]\n\n"
    counter = StreamCounter()
    stream = HEAD + chunked([payload[i : i + 1] for i in range(len(payload))])
    counts = [counter.feed(stream[i : i + 1]) for i in range(len(stream))]
    assert counts.count(1) == 2
    assert counts.count(0) == len(counts) - 2


def test_an_error_answer_is_told_with_its_status_and_body() -> None:
    answer = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbusy"
    with pytest.raises(BadStream, match=r"429 Too Many Requests: b'busy'"):
        StreamCounter().feed(answer)


def test_an_answer_that_is_no_stream_is_refused() -> None:
    with pytest.raises(BadStream, match="not chunked"):
        StreamCounter().feed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'data: {"usage": {}}\n\n', r"did not end with \[DONE\]"),
        (b'data: {"error": {"message": "dead"}}\n\ndata: [DONE]\n\n', "no usage"),
        (b'data: {"usage": null}\n\ndata: [DONE]\n\n', "no usage"),
        (b"data: [DONE]\n\n", "no usage"),
    ],
)
def test_a_stream_that_ended_badly_has_no_usage(payload: bytes, reason: str) -> None:
    counter = StreamCounter()
    counter.feed(HEAD + chunked([payload]))
    with pytest.raises(BadStream, match=reason):
        counter.usage()


def test_a_stream_that_is_cut_is_not_finished() -> None:
    counter = StreamCounter()
    counter.feed((HEAD + chunked([answer(["a"])]))[:-5])
    assert not counter.finished
    with pytest.raises(BadStream, match="did not end"):
        counter.usage()
