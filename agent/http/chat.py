"""`POST /v1/chat/completions`."""

import dataclasses
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.answers import Answers, Collected, collect, encode_whole
from pagelet.agent.http.body import parse_body
from pagelet.agent.http.chunks import ChunkFrame, encode_json
from pagelet.agent.http.conversation import renamed, start_conversation
from pagelet.agent.http.event_stream import EventStream, respond
from pagelet.agent.http.gate import context_of, use_request_id
from pagelet.agent.http.journal import began, journaled
from pagelet.agent.http.logprobs import chat_logprobs, prompt_logprobs
from pagelet.agent.http.message import MessageReader, call_ids, whole_message
from pagelet.agent.http.message_plan import MessagePlan
from pagelet.agent.http.sampling import chat_names
from pagelet.agent.http.server import Server, server_of
from pagelet.engine.outputs import RequestOutput
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
)
from pagelet.protocol.openai.routing import RouterHints

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answers a conversation."""
    server = server_of(request)
    body = await parse_body(request, ChatCompletionRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    answers = Answers(server, 1, 1 if body.n is None else body.n)
    return await respond(request, answers, _respond(request, server, body, answers))


async def _respond(
    request: Request, server: Server, body: ChatCompletionRequest, answers: Answers
) -> Response:
    context = context_of(request)
    hints = body.pagelet or RouterHints()
    try:
        prompt, plan = await start_conversation(server, body, answers, context.request_id)
    except InvalidRequest as error:
        raise renamed(error, chat_names(body)) from error
    response_id = f"chatcmpl-{context.request_id}"
    created = began(hints)
    if body.streams:
        frame = ChunkFrame(
            body,
            response_id=response_id,
            object_name="chat.completion.chunk",
            created=created,
            final_usage=answers.usage,
        )
        chunks = (
            ChatChunks(body, frame, prompt, None)
            if plan is None
            else MessageChunks(body, frame, prompt, plan, response_id)
        )
        return await EventStream.open(answers, journaled(chunks, hints, _index), context)
    collected = await collect(answers)
    usage = answers.usage()
    context.note_usage(usage)
    first = next(iter(collected.values()))

    def make() -> ChatCompletion:
        positions = first.prompt_logprobs
        return ChatCompletion(
            id=response_id,
            created=created,
            model=body.model,
            choices=[
                _choice(index, answer, body, plan, response_id)
                for (_, index), answer in collected.items()
            ],
            usage=usage,
            prompt_logprobs=prompt_logprobs(positions) if positions else None,
            prompt_token_ids=prompt if body.return_token_ids else None,
        )

    return await encode_whole(collected, make)


def _index(number: int, index: int) -> int:
    return index


def _choice(
    index: int,
    answer: Collected,
    body: ChatCompletionRequest,
    plan: MessagePlan | None,
    response_id: str,
) -> ChatChoice:
    finish_reason: Literal["stop", "length", "tool_calls"] = answer.finish_reason
    if plan is None:
        message = AssistantMessage(content=answer.text)
    else:
        reader = plan.make_reader(call_ids(response_id, index))
        message = whole_message(reader.read(answer.text, ends=True))
        if reader.calls and finish_reason == "stop":
            finish_reason = "tool_calls"
    return ChatChoice(
        index=index,
        message=message,
        logprobs=chat_logprobs(answer.logprobs) if body.logprobs else None,
        finish_reason=finish_reason,
        stop_reason=answer.stop_reason,
        token_ids=answer.token_ids if body.return_token_ids else None,
    )


class ChatChunks:
    """Each answer's first chunk has its role, the last its finish reason."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        frame: ChunkFrame,
        prompt: list[int],
        plan: MessagePlan | None,
    ) -> None:
        self._frame = frame
        self._logprobs = bool(body.logprobs)
        self._prompt_ids = prompt if body.return_token_ids else None
        self._plain = not (self._logprobs or frame.shows_all)
        self._tail = b'},"logprobs":null,"finish_reason":null}' + frame.plain_tail
        self._heads: dict[int, bytes] = {}
        resume = body.pagelet and body.pagelet.resume
        for index, answer in enumerate(resume.answers if resume else ()):
            if answer.begun:
                self._begin(index)
                counter = None if plan is None else plan.count_thinking()
                if counter is not None:
                    counter.push(answer.token_ids)
                thinking = 0 if counter is None else counter.num_tokens
                frame.resume(0, index, len(prompt), answer, thinking)

    def _begin(self, index: int) -> None:
        start = f'{{"index":{index},"delta":{{"content":'.encode()
        self._heads[index] = self._frame.plain_head(start)

    def encode(self, number: int, output: RequestOutput) -> bytes:
        """See `Chunks`."""
        head = self._heads.get(output.index)
        if head is None:
            self._begin(output.index)
            return self._role(number, output) + self.encode(number, output)
        if self._plain and output.finish_reason is None:
            return head + encode_json(output.text) + self._tail if output.text else b""
        return self._full(number, output)

    def _role(self, number: int, output: RequestOutput) -> bytes:
        choice: dict[str, Any] = {
            "index": output.index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._prompt_ids is not None:
            choice["prompt_token_ids"] = self._prompt_ids
        before = dataclasses.replace(output, num_generated_tokens=0, num_thinking_tokens=0)
        return self._frame.chunk(number, before, choice)

    def _full(self, number: int, output: RequestOutput) -> bytes:
        finished = output.finish_reason is not None
        if not (output.text or finished or output.logprobs or output.token_ids):
            return b""
        choice: dict[str, Any] = {
            "index": output.index,
            "delta": {"content": output.text} if output.text else {},
            "logprobs": None,
            "finish_reason": output.finish_reason,
        }
        if self._logprobs and output.logprobs:
            choice["logprobs"] = chat_logprobs(output.logprobs).model_dump()
        if finished:
            choice["stop_reason"] = output.stop_reason
        if self._prompt_ids is not None:
            choice["token_ids"] = output.token_ids
        return self._frame.chunk(number, output, choice)

    def end(self) -> bytes:
        """See `Chunks`."""
        return self._frame.end()


class MessageChunks(ChatChunks):
    """Of answers that think or call tools: each piece of a message is an event of its own."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        frame: ChunkFrame,
        prompt: list[int],
        plan: MessagePlan,
        response_id: str,
    ) -> None:
        super().__init__(body, frame, prompt, plan)
        self._plan = plan
        self._response_id = response_id
        self._readers: dict[int, MessageReader] = {}

    def encode(self, number: int, output: RequestOutput) -> bytes:
        """See `Chunks`."""
        index = output.index
        events = b""
        if index not in self._heads:
            self._begin(index)
            events = self._role(number, output)
        reader = self._readers.get(index)
        if reader is None:
            reader = self._plan.make_reader(call_ids(self._response_id, index))
            self._readers[index] = reader
            reader.read(output.resumed_text, ends=False)  # another replica passed it on
        finished = output.finish_reason is not None
        deltas = reader.read(output.text, ends=finished)
        shows_tokens = bool(self._logprobs and output.logprobs) or (
            self._prompt_ids is not None and bool(output.token_ids)
        )
        if finished or (shows_tokens and not deltas):
            deltas.append({})
        choices: list[dict[str, Any]] = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            for delta in deltas
        ]
        if not choices:
            return events
        last = choices[-1]
        if finished:
            called = output.finish_reason == "stop" and reader.calls
            last["finish_reason"] = "tool_calls" if called else output.finish_reason
            last["stop_reason"] = output.stop_reason
        if self._logprobs and output.logprobs:
            last["logprobs"] = chat_logprobs(output.logprobs).model_dump()
        if self._prompt_ids is not None:
            last["token_ids"] = output.token_ids
        return events + b"".join(self._frame.chunk(number, output, choice) for choice in choices)
