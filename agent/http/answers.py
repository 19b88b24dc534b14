"""All answers to one HTTP request: admitted together, read as one sequence, ended together."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import Response

from pagelet.agent.http.logprobs import named_by_id
from pagelet.agent.http.message_plan import MessagePlan
from pagelet.agent.http.server import Server
from pagelet.agent.reasoning import ThinkingCounter
from pagelet.agent.spans import note_stream
from pagelet.engine.beam_stream import AnswerStream
from pagelet.engine.outputs import EngineDead, PositionLogprobs, RequestOutput
from pagelet.engine.processor import RequestedSampling
from pagelet.engine.resume import AnswerSoFar
from pagelet.engine.sampling_request import check_num_answers
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.common import Usage, make_usage
from pagelet.protocol.openai.errors import ApiError, retry_after
from pagelet.protocol.openai.generation import GenerationRequest
from pagelet.protocol.openai.routing import Resume, RouterHints

_QUEUE_FREE_IN = 1.0
_MERGED_BACKLOG = 64
"""Deltas read ahead of a slow client when several prompts share one answer; beyond these each
stream merges its own."""

Prompt = str | list[int]


class Answers:
    """Iterate over (number of the prompt, delta); `close` aborts what still runs."""

    def __init__(
        self,
        server: Server,
        num_prompts: int,
        num_answers: int,
        param: str = "n",
        *,
        prompt_only: bool = False,
    ) -> None:
        """`num_answers` is n, and `param` the field that says so. With `prompt_only` what is
        generated is dropped: the engine always makes one token, but a client may ask for none, to
        get the prompt's logprobs.

        Raises `InvalidRequest` for a number that is out of range, and `ApiError` if the server is
        full.
        """
        check_num_answers(param, num_answers)
        self._server = server
        self._num_answers = num_answers
        self._admitted = num_prompts * num_answers
        most = server.admission.bound
        if most is not None and self._admitted > most:
            raise InvalidRequest(
                f"The request asks for {self._admitted} answers at once (prompts times "
                f"'{param}'); this server takes at most {most} (--max-queue). Split it.",
                param,
                "too_many_answers",
            )
        admit(server, self._admitted)
        self._streams: list[AnswerStream | None] = [None] * num_prompts
        self._usage: list[tuple[int, int]] = [(0, 0)] * num_prompts
        self._generated: dict[tuple[int, int], int] = {}
        self._thinking: dict[tuple[int, int], ThinkingCounter] = {}
        """Of answers that may think."""
        self._cached_before: dict[int, int] = {}
        """Of prompts whose answers another replica began: what it found in its cache."""
        self._prompt_only = prompt_only
        self._names_by_id = False
        self._timer: asyncio.TimerHandle | None = None
        self._expired: ApiError | None = None
        """What is answered when there is no more time."""

    @property
    def num_choices(self) -> int:
        """Of the whole response: n for each prompt."""
        return len(self._streams) * self._num_answers

    async def start(
        self,
        prompts: Sequence[Prompt],
        sampling: RequestedSampling,
        body: GenerationRequest,
        request_id: str,
        plan: MessagePlan | None = None,
    ) -> None:
        """Hands the prompts to the engine; `plan` is how their answers are read.

        Raises `InvalidRequest` or `EngineDead`.
        """
        llm = self._server.llm
        self._names_by_id = bool(body.return_tokens_as_token_ids)
        check_priority(self._server, body.priority)
        hints = body.pagelet or RouterHints()
        if hints.seed is not None and sampling.seed is None:
            sampling.seed = hints.seed
        for each in itertools.product(range(len(prompts)), range(self._num_answers)):
            if plan is not None and (counter := plan.count_thinking()) is not None:
                self._thinking[each] = counter
        if body.timeout is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(body.timeout, self._expire, body.timeout)
        so_far = None if hints.resume is None else self._so_far(hints.resume)
        lora = self._server.adapter_of(body.model)

        async def start_one(number: int, prompt: Prompt) -> None:
            asked: dict[str, Any] = {
                "request_id": request_id if len(prompts) == 1 else f"{request_id}-{number}",
                "priority": body.priority or 0,
                "cache_salt": body.cache_salt if hints.cache_salt is None else hints.cache_salt,
                "shared_prefix_tokens": hints.shared_prefix_tokens,
                "add_special_tokens": body.add_special_tokens is not False,
                "lora": lora,
            }
            stream: AnswerStream
            if body.use_beam_search:
                penalty = 1.0 if body.length_penalty is None else body.length_penalty
                stream = await llm.beam_search(prompt, sampling, penalty, **asked)
            else:
                resumed = None if so_far is None else so_far[number]
                stream = await llm.generate(prompt, sampling, so_far=resumed, **asked)
            self._streams[number] = stream
            note_stream(stream)
            self._usage[number] = (stream.num_prompt_tokens, self._cached_before.get(number, 0))
            self._server.metrics.on_request(stream.engine_index, self._num_answers)

        if len(prompts) == 1:
            await start_one(0, prompts[0])
            self._check_time()
            return
        jobs = [start_one(number, prompt) for number, prompt in enumerate(prompts)]
        for failure in await asyncio.gather(*jobs, return_exceptions=True):
            if failure is not None:
                raise failure
        self._check_time()

    def _check_time(self) -> None:
        if self._expired is not None:
            raise self._expired

    def _so_far(self, resume: Resume) -> list[list[AnswerSoFar]]:
        """The answers that another replica began, of each prompt; their tokens are in the usage."""
        if len(resume.answers) != self.num_choices:
            raise InvalidRequest(
                f"'pagelet.resume' has {len(resume.answers)} answers, but the request asks for "
                f"{self.num_choices} (prompts times 'n')",
                "pagelet",
            )
        n = self._num_answers
        for index, each in enumerate(resume.answers):
            answer = divmod(index, n)
            self._generated[answer] = len(each.token_ids)
            if (counter := self._thinking.get(answer)) is not None:
                counter.push(each.token_ids)
            if index % n == 0 and each.cached_tokens is not None:
                self._cached_before[index // n] = each.cached_tokens
        answers = [AnswerSoFar(a.token_ids, a.begun, a.finished) for a in resume.answers]
        return [answers[start : start + n] for start in range(0, len(answers), n)]

    def _expire(self, seconds: float) -> None:
        self._expired = ApiError(
            408,
            f"The answer was not complete within {seconds:g} s, the request's 'timeout'.",
            type="timeout_error",
            param="timeout",
            code="request_timeout",
            reason="timeout",
        )
        for stream in self._streams:
            if stream is not None and not stream.finished:
                stream.lose(str(self._expired))

    async def __aiter__(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """Raises `EngineDead` if an answer cannot be finished, and `ApiError` if not in time."""
        try:
            async for answer in self._read():
                yield answer
        except EngineDead as error:
            if self._expired is not None:
                raise self._expired from error
            raise

    async def _read(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        streams = [stream for stream in self._streams if stream is not None]
        assert len(streams) == len(self._streams), "not started"
        if len(streams) == 1:
            async for output in streams[0]:
                self._note(0, output)
                await _make_positions(output)
                yield 0, output
            return
        async for number, output in _merge(streams):
            self._note(number, output)
            await _make_positions(output)
            yield number, output

    def _note(self, number: int, output: RequestOutput) -> None:
        if self._prompt_only:
            output.text, output.token_ids, output.logprobs = "", [], None
            output.num_generated_tokens = 0
            if output.finish_reason == "stop":
                output.finish_reason, output.stop_reason = "length", None
        if self._names_by_id and output.logprobs is not None:
            output.logprobs = list(map(named_by_id, output.logprobs))
        output.num_cached_tokens = self._cached_before.get(number, output.num_cached_tokens)
        answer = number, output.index
        self._generated[answer] = output.num_generated_tokens
        if (counter := self._thinking.get(answer)) is not None:
            counter.push(output.token_ids)
            output.num_thinking_tokens = counter.num_tokens
        if output.index == 0:
            # The n answers to a prompt share its blocks: only the first tells what was cached.
            self._usage[number] = (output.num_prompt_tokens, output.num_cached_tokens)
        if output.request_fault:
            raise InvalidRequest(output.error or "the request cannot be served")
        if output.finish_reason == "error" or output.finish_reason == "abort":
            raise EngineDead(output.error or "the answer was broken off")

    def num_prompt_tokens(self, number: int) -> int:
        """Of a prompt, once the answers to it have started."""
        return self._usage[number][0]

    def usage(self) -> Usage:
        """Of all answers, as far as they have come."""
        prompt_tokens = sum(tokens for tokens, _ in self._usage)
        cached_tokens = sum(cached for _, cached in self._usage)
        thinking_tokens = sum(counter.num_tokens for counter in self._thinking.values())
        return make_usage(
            prompt_tokens, sum(self._generated.values()), cached_tokens, thinking_tokens
        )

    def close(self) -> None:
        """Ends all, whatever state they are in. May be called again."""
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams:
            if stream is not None:
                stream.close()
        self._server.admission.release(self._admitted)
        self._admitted = 0


def given_prompts(token_ids: list[list[int]], num_prompts: int) -> list[list[int]]:
    """The prompts that a router tokenised. Raises `InvalidRequest` if it did not tokenise all."""
    if len(token_ids) != num_prompts:
        raise InvalidRequest(
            f"'pagelet.prompt_token_ids' has {len(token_ids)} prompts, but the request has "
            f"{num_prompts}",
            "pagelet",
        )
    return token_ids


def check_priority(server: Server, priority: int | None) -> None:
    """Raises `InvalidRequest` for one that would have no effect."""
    if priority and server.llm.options.scheduler.policy != "priority":
        raise InvalidRequest(
            "'priority' has no effect here: this server takes requests in order of arrival "
            "(scheduler policy 'fcfs').",
            "priority",
        )


def admit(server: Server, num_answers: int) -> None:
    """Counts answers, or vectors, as in flight until they are released. Raises `ApiError` if the
    server is full."""
    if not server.admission.admit(num_answers):
        raise ApiError(
            429,
            f"The server has {server.admission.in_flight} answers in flight and takes at most "
            f"{server.admission.bound}; try again later.",
            code="queue_full",
            headers={"Retry-After": retry_after(_QUEUE_FREE_IN)},
            reason="queue_full",
        )


async def _make_positions(output: RequestOutput) -> None:
    """Those of a prompt, off the event loop: of 8,000 tokens they take half a second."""
    if output.prompt_logprobs is not None:
        output.prompt_logprobs = await asyncio.to_thread(list, output.prompt_logprobs)


async def _merge(streams: Sequence[AnswerStream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """The deltas of all streams as they come."""
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(
        _MERGED_BACKLOG
    )

    async def pump(number: int, stream: AnswerStream) -> None:
        end: Exception | None = None
        try:
            async for output in stream:
                await queue.put((number, output))
        except Exception as error:
            end = error
        await queue.put((number, end))

    pumps = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        open_streams = len(streams)
        while open_streams:
            number, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                open_streams -= 1
            else:
                yield number, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


class Collected:
    """One whole answer, for a client that does not stream."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[PositionLogprobs] = []
        self.prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
        self.finish_reason: Literal["stop", "length"] = "stop"
        self.stop_reason: int | str | None = None

    def add(self, output: RequestOutput) -> None:
        """Takes in the next delta."""
        self._texts.append(output.text)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if output.finish_reason == "stop" or output.finish_reason == "length":
            self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._texts)

    @property
    def mean_logprob(self) -> float:
        """Of its tokens; 0 of none."""
        total = sum(position.chosen.logprob for position in self.logprobs)
        return total / max(1, len(self.logprobs))


async def encode_whole(
    collected: Mapping[tuple[int, int], Collected], make: Callable[[], BaseModel]
) -> Response:
    """The response with the body that `make` makes, in a thread if it has a prompt's logprobs:
    other streams would stand still for as long as those of a long prompt take."""

    def encode() -> str:
        return make().model_dump_json()

    is_long = any(answer.prompt_logprobs is not None for answer in collected.values())
    content = await asyncio.to_thread(encode) if is_long else encode()
    return Response(content, media_type="application/json")


async def collect(answers: Answers) -> dict[tuple[int, int], Collected]:
    """The answers by (number of the prompt, index among its n), in order."""
    collected: dict[tuple[int, int], Collected] = {}
    async for number, output in answers:
        collected.setdefault((number, output.index), Collected()).add(output)
    return dict(sorted(collected.items()))


def likeliest(
    collected: Mapping[tuple[int, int], Collected], n: int
) -> dict[tuple[int, int], Collected]:
    """Of the answers to each prompt the `n` whose tokens are likeliest in the mean, the best first
    (`best_of` of OpenAI's API), numbered anew."""
    by_prompt: dict[int, list[Collected]] = {}
    for (number, _), answer in collected.items():
        by_prompt.setdefault(number, []).append(answer)
    return {
        (number, index): answer
        for number, drawn in by_prompt.items()
        for index, answer in enumerate(
            sorted(drawn, key=lambda each: each.mean_logprob, reverse=True)[:n]
        )
    }
