"""Closed and open loops against a tiny server."""

from collections.abc import Iterable
from typing import Any

from pagelet.bench.load import datasets
from pagelet.bench.load.datasets import Lengths
from pagelet.bench.load.http_client import HttpClient
from pagelet.bench.load.openai_api import RequestOptions
from pagelet.bench.load.records import Record
from pagelet.bench.load.run import Load, RunResult, run_load
from pagelet.bench.load.vocabulary import Words
from pagelet.bench.load.workload import Session, Turn, Workload
from support.answering import Request, answering, completion

OPTIONS = RequestOptions("m")


async def run(
    url: str, workload: Workload, load: Load, options: RequestOptions = OPTIONS
) -> tuple[RunResult, list[Record]]:
    client, seen = HttpClient(url), list[Record]()
    try:
        return await run_load(client, options, workload, load, seen.append), seen
    finally:
        await client.close()


def good(request: Request) -> list[bytes | float]:
    usage = {"prompt_tokens": 6, "completion_tokens": 2}
    head, *rest = completion(["a", "b"], usage)
    return [head, 0.005, *rest]


async def test_a_closed_loop_keeps_so_many_requests_in_flight() -> None:
    workload = datasets.random_prompts(Words(), 12, Lengths(5, 2), 0)
    async with answering(good) as server:
        result, seen = await run(server.url, workload, Load(concurrency=3))
    assert server.peak == 3
    assert len(server.requests) == len(result.records) == len(seen) == 12
    assert {request.json["prompt"] for request in server.requests} == {
        session.turns[0].content for session in workload.sessions
    }
    for record in result.records:
        assert record.ok
        assert (record.prompt_tokens, record.output_tokens) == (6, 2)
        assert record.due == record.sent
        assert record.sent < record.token_times[0] <= record.token_times[1] <= record.end
        assert record.end <= result.duration
    assert result.cpu_seconds > 0


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    def never_first(request: Request) -> Iterable[bytes | float]:
        if len(server.requests) == 1:
            while len(server.requests) < 10:  # the others come although this one is not answered
                yield 0.001
        yield from good(request)

    workload = datasets.random_prompts(Words(), 10, Lengths(5, 2), 0)
    load = Load(request_rate=500, burstiness=float("inf"))
    async with answering(never_first) as server:
        result, _ = await run(server.url, workload, load)
    assert all(record.ok for record in result.records)
    dues = sorted(record.due for record in result.records)
    assert [round(due * 500) for due in dues] == list(range(1, 11))
    assert all(record.sent >= record.due for record in result.records)


async def test_a_workload_can_say_when_its_requests_come() -> None:
    sessions = [Session((Turn(" b", 2),), 0.03, "late"), Session((Turn(" a", 2),), 0.0, "early")]
    async with answering(good) as server:
        result, _ = await run(server.url, Workload("x", tuple(sessions)), Load())
    assert [request.json["prompt"] for request in server.requests] == [" a", " b"]
    assert {record.label: record.due for record in result.records} == {"late": 0.03, "early": 0.0}


async def test_a_conversation_goes_on_with_the_servers_answers() -> None:
    turns = (Turn(" one", 2), Turn(" two", 2), Turn(" three", 2))
    async with answering(good) as server:
        await run(server.url, Workload("x", (Session(turns),)), Load(concurrency=4))
    prompts = [request.json["prompt"] for request in server.requests]
    assert prompts == [" one", " oneab two", " oneab twoab three"]


async def test_a_chat_goes_to_its_own_path() -> None:
    def answer(request: Request) -> Iterable[bytes]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "a"}]
        body = b"".join(completion([], None))
        for delta in reversed(deltas):
            text = b'data: {"choices": [{"delta": %s}]}\n\n' % str(delta).replace("'", '"').encode()
            body = body.replace(b"\r\n\r\n", b"\r\n\r\n%x\r\n%s\r\n" % (len(text), text), 1)
        return [body]

    workload = Workload("x", (Session((Turn(" one", 2), Turn(" two", 2))),))
    async with answering(answer) as server:
        result, _ = await run(
            server.url, workload, Load(concurrency=1), RequestOptions("m", "chat")
        )
    assert all(record.ok for record in result.records)
    assert [request.path for request in server.requests] == 2 * ["/v1/chat/completions"]
    assert [len(request.json["messages"]) for request in server.requests] == [1, 3]


async def test_a_request_that_fails_ends_its_session_and_nothing_else() -> None:
    def answer(request: Request) -> Iterable[bytes | float]:
        if "bad" in request.json["prompt"]:
            return [b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nbusy"]
        return good(request)

    turns = (Turn(" bad", 2), Turn(" never", 2))
    sessions = (Session(turns), *(Session((Turn(f" {i}", 2),)) for i in range(5)))
    async with answering(answer) as server:
        result, _ = await run(server.url, Workload("x", sessions), Load(concurrency=2))
    failed = [record for record in result.records if not record.ok]
    assert [record.error for record in failed] == ["HTTP 429 Too Many Requests"]
    assert failed[0].error_detail.endswith("busy")
    assert len(result.records) == 6
    assert not any("never" in request.json["prompt"] for request in server.requests)
