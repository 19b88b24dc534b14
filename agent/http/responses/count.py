"""`POST /v1/responses/input_tokens`."""

import asyncio
from collections.abc import Sequence

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.answers import check_priority
from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import planned, prompt_of, renamed
from pagelet.agent.http.responses.request import NAMES, chat_request, check_logprobs
from pagelet.agent.http.responses.stored import conversation_before, resolved, store_of
from pagelet.agent.http.responses.too_long import naming_truncation
from pagelet.agent.http.sampling import chat_sampling
from pagelet.agent.http.server import Server, server_of
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.errors import INPUT_TOKENS
from pagelet.protocol.openai.response_input import InputItem
from pagelet.protocol.openai.responses import ResponseRequest

router = APIRouter()


@router.post(INPUT_TOKENS)
async def count_input_tokens(request: Request) -> Response:
    """Tokens that a response would read, without answering."""
    server = server_of(request)
    body = await parse_body(request, ResponseRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    if body.background:
        store_of(server, "background")
    items = conversation_before(request, server, body) + resolved(request, server, body)
    try:
        number = await _count(server, body, items)
    except InvalidRequest as error:
        raise renamed(error, NAMES) from error
    count = {"object": "response.input_tokens", "input_tokens": number}
    return Response(msgspec.json.encode(count), media_type="application/json")


async def _count(server: Server, body: ResponseRequest, items: Sequence[InputItem]) -> int:
    """Raises `InvalidRequest`."""
    chat = await asyncio.to_thread(chat_request, body, items)  # of many items it takes long
    room = server.llm.max_model_len - (body.max_output_tokens or 1)
    try:
        prompt = await prompt_of(server, chat, room if body.truncation == "auto" else None)
    except InvalidRequest as error:
        raise await naming_truncation(error, server, body, chat) from error
    await _check(server, body, chat, prompt)
    return len(prompt)


async def _check(
    server: Server, body: ResponseRequest, chat: ChatCompletionRequest, prompt: list[int]
) -> None:
    """Raises `InvalidRequest` for all that an answer would be refused for, but for its length and
    what only shows when a grammar is compiled."""
    sampling = chat_sampling(chat)
    check_logprobs(body, await planned(server, chat, prompt, sampling))
    check_priority(server, body.priority)
    server.llm.processor.process(
        prompt[-1:],
        sampling,
        request_id="",
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
    )
    if sampling.structured is not None:
        await asyncio.to_thread(sampling.structured.build)
