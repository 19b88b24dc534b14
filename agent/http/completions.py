"""`POST /v1/completions`."""

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.answers import (
    Answers,
    Collected,
    collect,
    encode_whole,
    given_prompts,
    likeliest,
)
from pagelet.agent.http.body import parse_body
from pagelet.agent.http.chunks import ChunkFrame, encode_json
from pagelet.agent.http.conversation import renamed
from pagelet.agent.http.event_stream import EventStream, respond
from pagelet.agent.http.gate import context_of, use_request_id
from pagelet.agent.http.journal import began, journaled
from pagelet.agent.http.logprobs import LegacyLogprobs, named_by_id, prompt_logprobs
from pagelet.agent.http.sampling import completion_names, completion_sampling
from pagelet.agent.http.server import Server, server_of
from pagelet.engine.async_llm import AsyncLLM
from pagelet.engine.outputs import RequestOutput
from pagelet.engine.processor import truncated
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from pagelet.protocol.openai.routing import RouterHints

router = APIRouter()


@dataclasses.dataclass(slots=True)
class _Prompt:
    text: str
    """What `echo` shows; empty if it was not asked for."""
    token_ids: list[int]
    """Empty unless the answer needs them."""


@dataclasses.dataclass(slots=True)
class _Job:
    """A request on its way through the handler."""

    body: CompletionRequest
    llm: AsyncLLM
    prompts: list[_Prompt]
    hidden_ids: Collection[int]
    """Tokens that do not show in the text."""
    response_id: str
    created: int

    def index(self, number: int, index: int) -> int:
        """A choice's place in the answer."""
        return number * (self.body.n or 1) + index

    def echo_logprobs(
        self, legacy: LegacyLogprobs, number: int, output: RequestOutput | Collected
    ) -> CompletionLogprobs:
        """Logprobs of the echoed prompt."""
        prompt = self.prompts[number]
        token_id = prompt.token_ids[0]
        text, data = self.llm.tokenizer.token_text(token_id)
        positions = output.prompt_logprobs or []
        if self.body.return_tokens_as_token_ids:
            text = f"token_id:{token_id}"
            positions = [each if each is None else named_by_id(each) for each in positions]
        return legacy.convert_prompt((token_id, text, data), positions, len(prompt.text))


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Continues one prompt or a batch of them."""
    server = server_of(request)
    body = await parse_body(request, CompletionRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    prompt_only = body.max_tokens == 0
    answers = Answers(
        server,
        len(body.prompts()),
        body.num_drawn,
        "n" if body.best_of is None else "best_of",
        prompt_only=prompt_only,
    )
    return await respond(request, answers, _respond(request, server, body, answers))


async def _respond(
    request: Request, server: Server, body: CompletionRequest, answers: Answers
) -> Response:
    context = context_of(request)
    sampling = completion_sampling(body)
    shows_special = body.skip_special_tokens is False
    hints = body.pagelet or RouterHints()
    inputs: list[str | list[int]] = body.prompts()
    given: list[list[int]] | list[None] = [None] * len(inputs)
    if hints.prompt_token_ids is not None:
        given = given_prompts(hints.prompt_token_ids, len(inputs))
    prompts = [_Prompt("", []) for _ in inputs]
    if body.echo or body.return_token_ids:
        jobs = [_prepare(server.llm, *each, body) for each in zip(inputs, given, strict=True)]
        prompts = list(await asyncio.gather(*jobs))
        inputs = [prompt.token_ids for prompt in prompts]
    elif hints.prompt_token_ids is not None:
        inputs = list(hints.prompt_token_ids)
    try:
        await answers.start(inputs, sampling, body, context.request_id)
    except InvalidRequest as error:
        raise renamed(error, completion_names(body)) from error
    job = _Job(
        body,
        server.llm,
        prompts,
        () if shows_special else server.llm.tokenizer.special_ids,
        f"cmpl-{context.request_id}",
        began(hints),
    )
    if body.streams:
        frame = ChunkFrame(
            body,
            response_id=job.response_id,
            object_name="text_completion",
            created=job.created,
            final_usage=answers.usage,
        )
        chunks = CompletionChunks(job, frame, answers.num_prompt_tokens)
        return await EventStream.open(answers, journaled(chunks, hints, job.index), context)
    collected = await collect(answers)
    if body.num_drawn > (body.n or 1):
        collected = likeliest(collected, body.n or 1)
    usage = answers.usage()
    context.note_usage(usage)

    def make() -> Completion:
        return Completion(
            id=job.response_id,
            created=job.created,
            model=body.model,
            choices=[_choice(job, *key, answer) for key, answer in collected.items()],
            usage=usage,
        )

    return await encode_whole(collected, make)


async def _prepare(
    llm: AsyncLLM, prompt: str | list[int], given: list[int] | None, body: CompletionRequest
) -> _Prompt:
    """`given` are the prompt's token ids if a router made them."""
    room = llm.max_model_len - (body.max_tokens or 1)
    if isinstance(prompt, str):
        if given is None:
            given = await llm.encode(prompt, body.add_special_tokens is not False)
        given = truncated(given, body.truncate_prompt_tokens, room)
        return _Prompt(prompt if body.echo else "", given)
    shown = ""
    if body.echo:
        shown = await llm.decode(prompt, body.skip_special_tokens is not False)
    return _Prompt(shown, truncated(prompt, body.truncate_prompt_tokens, room))


def _choice(job: _Job, number: int, index: int, answer: Collected) -> CompletionChoice:
    body, prompt = job.body, job.prompts[number]
    logprobs = None
    if body.logprobs is not None:
        legacy = LegacyLogprobs(job.hidden_ids)
        logprobs = job.echo_logprobs(legacy, number, answer) if body.echo else None
        own = legacy.convert(answer.logprobs)
        logprobs = own if logprobs is None else logprobs.extended(own)
    return CompletionChoice(
        index=job.index(number, index),
        text=prompt.text + answer.text,
        logprobs=logprobs,
        finish_reason=answer.finish_reason,
        stop_reason=answer.stop_reason,
        prompt_logprobs=(
            prompt_logprobs(answer.prompt_logprobs)
            if body.prompt_logprobs is not None and answer.prompt_logprobs is not None
            else None
        ),
        token_ids=answer.token_ids if body.return_token_ids else None,
        prompt_token_ids=prompt.token_ids if body.return_token_ids else None,
    )


class CompletionChunks:
    """With `echo`, each answer's first chunk has its prompt."""

    def __init__(
        self, job: _Job, frame: ChunkFrame, num_prompt_tokens: Callable[[int], int]
    ) -> None:
        self._job = job
        self._frame = frame
        self._plain = job.body.logprobs is None and not frame.shows_all
        self._tail = b',"logprobs":null,"finish_reason":null}' + frame.plain_tail
        self._heads: dict[int, bytes] = {}
        self._legacy: dict[int, LegacyLogprobs] = {}
        resume = job.body.pagelet and job.body.pagelet.resume
        for index, answer in enumerate(resume.answers if resume else ()):
            if answer.begun:
                number, of_prompt = divmod(index, job.body.n or 1)
                self._begin(index)
                self._skip(number, index, answer.token_ids)
                frame.resume(number, of_prompt, num_prompt_tokens(number), answer)

    def _begin(self, index: int) -> None:
        start = f'{{"index":{index},"text":'.encode()
        self._heads[index] = self._frame.plain_head(start)
        self._legacy[index] = LegacyLogprobs(self._job.hidden_ids)

    def _skip(self, number: int, index: int, token_ids: Sequence[int]) -> None:
        if self._job.body.logprobs is not None:
            token_text = self._job.llm.tokenizer.token_text
            tokens = ((token_id, token_text(token_id)[1]) for token_id in token_ids)
            self._legacy[index].skip(len(self._job.prompts[number].text), tokens)

    def encode(self, number: int, output: RequestOutput) -> bytes:
        """See `Chunks`."""
        index = self._job.index(number, output.index)
        head = self._heads.get(index)
        if head is None:
            self._begin(index)
            echo = self._echo(index, number, output)
            return echo + self.encode(number, output)
        if self._plain and output.finish_reason is None:
            return head + encode_json(output.text) + self._tail if output.text else b""
        return self._full(index, number, output)

    def _echo(self, index: int, number: int, output: RequestOutput) -> bytes:
        body, prompt = self._job.body, self._job.prompts[number]
        if not (body.echo or body.return_token_ids):
            return b""
        choice: dict[str, Any] = {
            "index": index,
            "text": prompt.text,
            "logprobs": None,
            "finish_reason": None,
        }
        if body.echo and body.logprobs is not None:
            logprobs = self._job.echo_logprobs(self._legacy[index], number, output)
            choice["logprobs"] = logprobs.model_dump()
        if body.return_token_ids:
            choice["prompt_token_ids"] = prompt.token_ids
        return self._frame.chunk(number, output, choice)

    def _full(self, index: int, number: int, output: RequestOutput) -> bytes:
        body = self._job.body
        finished = output.finish_reason is not None
        if not (output.text or finished or output.logprobs or output.token_ids):
            return b""
        choice: dict[str, Any] = {
            "index": index,
            "text": output.text,
            "logprobs": None,
            "finish_reason": output.finish_reason,
        }
        if body.logprobs is not None and output.logprobs:
            choice["logprobs"] = self._legacy[index].convert(output.logprobs).model_dump()
        if finished:
            choice["stop_reason"] = output.stop_reason
        if body.return_token_ids:
            choice["token_ids"] = output.token_ids
        return self._frame.chunk(number, output, choice)

    def end(self) -> bytes:
        """See `Chunks`."""
        return self._frame.end()
