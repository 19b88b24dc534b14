"""The measured streams against servers that do as they should and servers that do not."""

import pytest

from pagelet.bench.http_streams import NAME, BadStream, measure, stream_all, summarise
from pagelet.bench.load.records import Record
from pagelet.bench.load.run import RunResult
from support.answering import STREAM_HEAD, answering, chunk, completion, event


async def test_every_stream_is_counted_and_has_a_prompt_of_its_own() -> None:
    parts = completion(["a", "b", "c"], {"completion_tokens": 3})
    async with answering(lambda request: parts) as server:
        result = await stream_all(server.url, num_streams=8, prompt_tokens=20, num_tokens=3)
    assert [record.output_tokens for record in result.records] == [3] * 8
    assert [len(record.token_times) for record in result.records] == [3] * 8
    requests = [request.json for request in server.requests]
    assert len({tuple(request["prompt"][:16]) for request in requests}) == 8
    for request in requests:
        assert len(request["prompt"]) == 20
        assert (request["model"], request["max_tokens"]) == (NAME, 3)
        assert request["stream"] is request["ignore_eos"] is True


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\ndead"], "503.*dead"),
        ([STREAM_HEAD, chunk(event({"choices": [{"text": "a"}]})), b""], "connection cut"),
        (completion(["a", "b"], {"completion_tokens": 2}), "2 tokens instead of 3"),
    ],
)
async def test_a_stream_that_goes_wrong_fails_the_measurement(
    parts: list[bytes], reason: str
) -> None:
    async with answering(lambda request: parts) as server:
        with pytest.raises(BadStream, match=reason):
            await stream_all(server.url, num_streams=1, prompt_tokens=4, num_tokens=3)


def test_the_figures_count_from_the_start_to_the_end_of_the_last_stream() -> None:
    records = [
        Record("", 0.0, 0.0, [0.5, 1.0, 2.0], 4, 30, 0, 2.0),
        Record("", 1.0, 1.0, [1.1, 4.0], 4, 50, 0, 4.0),
    ]
    tokens, events, median, worst = summarise("x", RunResult(records, 4.0, 0.1))
    assert tokens.value == 80 / 4
    assert events.value == 5 / 4
    assert (median.value, worst.value) == pytest.approx((100.0, 500.0))


def test_a_real_server_streams_all_tokens() -> None:
    texts: list[str] = []
    figures = measure(texts.append, num_streams=4, prompt_tokens=20, num_tokens=24)
    assert [figure.unit for figure in figures] == 2 * ["tokens/s", "events/s", "ms", "ms"]
    assert all(figure.value > 0 for figure in figures)
    assert "warming up 4 streams" in texts
