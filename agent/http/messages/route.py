"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, of Anthropic's API."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.answers import Answers
from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import prompt_of, start_conversation
from pagelet.agent.http.event_stream import EventStream, respond
from pagelet.agent.http.gate import context_of, use_request_id
from pagelet.agent.http.items import ItemReader
from pagelet.agent.http.journal import JournaledItems, failed
from pagelet.agent.http.messages.events import MessageEvents
from pagelet.agent.http.messages.output import message
from pagelet.agent.http.messages.refused import in_anthropics_words
from pagelet.agent.http.messages.request import chat_request
from pagelet.agent.http.server import Server, server_of
from pagelet.protocol.anthropic.answers import TokenCount
from pagelet.protocol.anthropic.errors import MESSAGES, error_event
from pagelet.protocol.anthropic.requests import CountTokensRequest, MessagesRequest
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.routing import RouterHints

router = APIRouter()


@router.post(MESSAGES)
async def create_message(request: Request) -> Response:
    """Answers a conversation."""
    server = server_of(request)
    body = await parse_body(request, MessagesRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    answers = Answers(server, 1, 1)
    return await respond(request, answers, _respond(request, server, body, answers))


async def _respond(
    request: Request, server: Server, body: MessagesRequest, answers: Answers
) -> Response:
    context = context_of(request)
    try:
        chat = await asyncio.to_thread(chat_request, body)  # of many blocks it takes long
        # Clients must give a budget with "enabled"; where nothing is thought, it bounds nothing.
        if body.thinking is not None and server.message_forms.bounds_thinking:
            chat.thinking_budget = body.thinking.budget_tokens
        _, plan = await start_conversation(server, chat, answers, context.request_id)
    except InvalidRequest as error:
        raise in_anthropics_words(error) from error
    message_id = f"msg_{context.request_id}"
    hints = body.pagelet or RouterHints()
    resume = hints.resume
    reader = ItemReader(plan, message_id)
    if body.stream:
        begun = resume is not None and resume.answers[0].begun
        events = MessageEvents(message_id, body.model, reader, answers.usage, begun=begun)
        if hints.journal:
            journaled = JournaledItems(events, resume)
            return await EventStream.open(
                answers,
                journaled,
                context,
                lambda error: failed(error_event(MESSAGES, error), error),
            )
        return await EventStream.open(answers, events, context)
    async for _, output in answers:
        reader.push(output)
    usage = answers.usage()
    context.note_usage(usage)
    whole = message(message_id, body.model, reader, usage)
    return Response(whole.model_dump_json(), media_type="application/json")


@router.post(f"{MESSAGES}/count_tokens")
async def count_tokens(request: Request) -> Response:
    """Tokens of a conversation, without answering it."""
    server = server_of(request)
    body = await parse_body(request, CountTokensRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    try:
        chat = await asyncio.to_thread(chat_request, body)  # of many blocks it takes long
        answer = TokenCount(input_tokens=len(await prompt_of(server, chat)))
    except InvalidRequest as error:
        raise in_anthropics_words(error) from error
    return Response(answer.model_dump_json(), media_type="application/json")
