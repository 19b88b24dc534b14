"""`POST /v1/responses/input_tokens`."""

import asyncio

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import prompt_of, renamed
from pagelet.agent.http.responses.request import NAMES, chat_request
from pagelet.agent.http.responses.stored import conversation_before, resolved
from pagelet.agent.http.server import server_of
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.errors import INPUT_TOKENS
from pagelet.protocol.openai.responses import ResponseRequest

router = APIRouter()


@router.post(INPUT_TOKENS)
async def count_input_tokens(request: Request) -> Response:
    """Tokens that a response would read, without answering."""
    server = server_of(request)
    body = await parse_body(request, ResponseRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    items = conversation_before(request, server, body) + resolved(request, server, body)
    room = server.llm.max_model_len - (body.max_output_tokens or 1)
    try:
        chat = await asyncio.to_thread(chat_request, body, items)  # of many items it takes long
        prompt = await prompt_of(server, chat, room if body.truncation == "auto" else None)
    except InvalidRequest as error:
        raise renamed(error, NAMES) from error
    count = {"object": "response.input_tokens", "input_tokens": len(prompt)}
    return Response(msgspec.json.encode(count), media_type="application/json")
