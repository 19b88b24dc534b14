"""Puts a workload on a server: in a closed loop, where each of N clients sends its next request
when it has the answer to the last, or in an open loop, where requests come at their times, answered
or not."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from pagelet.bench.load.arrivals import arrival_times
from pagelet.bench.load.http_client import HttpClient, RequestFailed
from pagelet.bench.load.openai_api import PATHS, AnswerReader, RequestOptions
from pagelet.bench.load.records import Record
from pagelet.bench.load.workload import History, Prompt, Session, Workload

Observer = Callable[[Record], None]


@dataclasses.dataclass(frozen=True)
class Load:
    """How hard the server is pressed."""

    concurrency: int | None = None
    """Sessions in flight at most; without a rate, always that many."""
    request_rate: float | None = None
    """Sessions a second, on average; the workload's own times if it has them and this is None."""
    burstiness: float = 1.0
    """See `arrival_times`."""
    seed: int = 0

    def arrivals(self, workload: Workload) -> list[float]:
        """Seconds after the start for each session. In a closed loop all are there at once."""
        if self.request_rate is not None:
            rng = np.random.default_rng([self.seed, 2])
            return arrival_times(len(workload.sessions), self.request_rate, self.burstiness, rng)
        if workload.timed:
            return [session.arrival or 0.0 for session in workload.sessions]
        return [0.0] * len(workload.sessions)


@dataclasses.dataclass(frozen=True)
class RunResult:
    """A run: what came of each request, and what it took."""

    records: list[Record]
    duration: float
    """Seconds from the start to the end of the last answer."""
    cpu_seconds: float
    """Of this process, meanwhile: close to `duration`, the generator itself was the bottleneck."""


async def run_load(
    client: HttpClient,
    options: RequestOptions,
    workload: Workload,
    load: Load,
    observe: Observer = lambda record: None,
) -> RunResult:
    """Runs all sessions and tells `observe` of each request's end. A request that fails is recorded
    and ends its session; it stops nothing else."""
    arrivals = load.arrivals(workload)
    slots: contextlib.AbstractAsyncContextManager[object] = (
        contextlib.nullcontext()
        if load.concurrency is None
        else asyncio.Semaphore(load.concurrency)
    )
    records: list[Record] = []
    closed_loop = not any(arrivals)
    cpu_before, begin = time.process_time(), time.perf_counter()

    async def run_session(session: Session, due: float) -> None:
        async with slots:
            history = History(chat=options.endpoint == "chat")
            for number, turn in enumerate(session.turns):
                if turn.pause and number:
                    await asyncio.sleep(turn.pause)
                sent = time.perf_counter() - begin
                on_time = closed_loop or number > 0
                record, text = await send(
                    client,
                    options,
                    turn.content if session.scripted else history.prompt(turn),
                    turn.max_tokens,
                    Record(session.label, sent if on_time else due, sent, [], 0, 0, None, sent),
                    begin,
                )
                records.append(record)
                observe(record)
                if not record.ok:
                    return
                history.answered(text)

    async with asyncio.TaskGroup() as group:
        for session, due in _in_order(workload.sessions, arrivals):
            if (wait := begin + due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            group.create_task(run_session(session, due))
    duration = time.perf_counter() - begin
    return RunResult(records, duration, time.process_time() - cpu_before)


async def run_completions(
    address: str, model: str, workload: Workload, load: Load, answer_seconds: float = 600.0
) -> RunResult:
    """`run_load` with greedy completions, each of which may take so long, and a client of its
    own."""
    async with HttpClient(address, timeout=answer_seconds) as client:
        return await run_load(client, RequestOptions(model), workload, load)


async def send(
    client: HttpClient,
    options: RequestOptions,
    prompt: Prompt,
    max_tokens: int,
    record: Record,
    begin: float,
) -> tuple[Record, str]:
    """Sends one request and completes its record, whose times count from `begin`, a
    `time.perf_counter()`. Returns the answer's text, too."""
    answer = AnswerReader()
    try:
        await client.post(PATHS[options.endpoint], options.body(prompt, max_tokens), answer)
        answer.check()
    except RequestFailed as error:
        record.error, record.error_detail = error.kind, str(error)
    record.end = time.perf_counter() - begin
    record.token_times = [seen - begin for seen in answer.token_times]
    usage = answer.usage
    record.prompt_tokens = usage.prompt_tokens or 0
    record.output_tokens = answer.num_tokens
    if usage.prompt_tokens_details is not None:
        record.cached_tokens = usage.prompt_tokens_details.cached_tokens
    return record, "".join(answer.text)


def _in_order(
    sessions: Sequence[Session], arrivals: Sequence[float]
) -> list[tuple[Session, float]]:
    return sorted(zip(sessions, arrivals, strict=True), key=lambda pair: pair[1])
