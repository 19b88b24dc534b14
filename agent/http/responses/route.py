"""`POST /v1/responses`."""

import asyncio
import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.answers import Answers
from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import renamed, start_conversation
from pagelet.agent.http.errors import as_api_error
from pagelet.agent.http.event_stream import EventStream, respond
from pagelet.agent.http.gate import context_of, use_request_id
from pagelet.agent.http.items import ItemReader
from pagelet.agent.http.journal import JournaledItems, began, failed
from pagelet.agent.http.responses.events import ResponseEvents
from pagelet.agent.http.responses.output import ResponseWriter
from pagelet.agent.http.responses.request import NAMES, chat_request, check_logprobs
from pagelet.agent.http.responses.store import Owner, ResponseStore
from pagelet.agent.http.responses.stored import conversation_before, owner_of, resolved, store_of
from pagelet.agent.http.responses.too_long import naming_truncation
from pagelet.agent.http.server import Server, server_of
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.errors import RESPONSES
from pagelet.protocol.openai.response_input import InputItem
from pagelet.protocol.openai.response_object import ResponseObject
from pagelet.protocol.openai.responses import ResponseRequest
from pagelet.protocol.openai.routing import RouterHints

router = APIRouter()

_ITEM_PREFIXES: Final = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


@router.post(RESPONSES)
async def create_response(request: Request) -> Response:
    """Answers what is asked in `input`, and keeps the answer if that was asked for."""
    server = server_of(request)
    body = await parse_body(request, ResponseRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    if body.background:
        store_of(server, "background")
    items = conversation_before(request, server, body) + resolved(request, server, body)
    answers = Answers(server, 1, 1)
    if body.background:
        return await _respond_later(request, server, body, items, answers)
    return await respond(request, answers, _respond(request, server, body, items, answers))


@dataclasses.dataclass(slots=True)
class _Place:
    """Where a response is kept."""

    store: ResponseStore
    owner: Owner
    items: list[Any]

    def keep(self, response: ResponseObject) -> None:
        self.store.keep(self.owner, response, self.items)


@dataclasses.dataclass(slots=True)
class _Begun:
    """A response whose answer has been started."""

    reader: ItemReader
    writer: ResponseWriter
    place: _Place | None


async def _begin(
    request: Request,
    server: Server,
    body: ResponseRequest,
    items: Sequence[InputItem],
    answers: Answers,
) -> _Begun:
    """Raises `InvalidRequest` or `EngineDead`."""
    request_id = context_of(request).request_id
    try:
        chat = await asyncio.to_thread(chat_request, body, items)  # of many items it takes long
        try:
            _, plan = await start_conversation(
                server, chat, answers, request_id, drops_oldest=body.truncation == "auto"
            )
        except InvalidRequest as error:
            raise await naming_truncation(error, server, body, chat) from error
    except InvalidRequest as error:
        raise renamed(error, NAMES) from error
    check_logprobs(body, plan)
    hints = body.pagelet or RouterHints()
    store = server.responses if body.store or body.background else None
    response_id = f"resp_{request_id}" if store is None else store.new_id(request_id)
    if hints.resume is not None and hints.resume.response_id is not None:
        response_id = hints.resume.response_id
    reader = ItemReader(plan, response_id)
    writer = ResponseWriter(
        body,
        response_id,
        reader,
        began(hints),
        server.llm.processor.default_sampling,
        stored=store is not None,
    )
    place = None
    if store is not None:
        place = _Place(store, owner_of(request), _input_items(response_id, items))
    return _Begun(reader, writer, place)


async def _respond(
    request: Request,
    server: Server,
    body: ResponseRequest,
    items: Sequence[InputItem],
    answers: Answers,
) -> Response:
    context = context_of(request)
    begun = await _begin(request, server, body, items, answers)
    hints = body.pagelet or RouterHints()
    resume = hints.resume
    keep = None if begun.place is None else begun.place.keep
    if body.stream:
        events = ResponseEvents(
            begun.writer, begun.reader, answers.usage, resume.events if resume else 0, keep
        )
        if hints.journal and not body.wants_logprobs:  # the last events repeat all logprobs
            journaled = JournaledItems(events, resume)
            return await EventStream.open(
                answers, journaled, context, lambda error: failed(events.fail(error), error)
            )
        return await EventStream.open(answers, events, context, events.fail)
    async for _, output in answers:
        begun.reader.push(output)
    usage = answers.usage()
    context.note_usage(usage)
    whole = begun.writer.whole(usage)
    if keep is not None:
        keep(whole)
    return _json(whole)


async def _respond_later(
    request: Request,
    server: Server,
    body: ResponseRequest,
    items: Sequence[InputItem],
    answers: Answers,
) -> Response:
    try:
        begun = await _begin(request, server, body, items, answers)
    except BaseException:
        answers.close()
        raise
    place = begun.place
    assert place is not None
    first = begun.writer.begun()
    stored = place.store.keep(place.owner, first, place.items, background=True)
    await place.store.run(stored, _work(server, answers, begun, place))
    return _json(first)


async def _work(server: Server, answers: Answers, begun: _Begun, place: _Place) -> None:
    """The answer of a response in the background. A drain waits for it."""
    server.open_request()
    try:
        async for _, output in answers:
            begun.reader.push(output)
        last = begun.writer.whole(answers.usage())
    except asyncio.CancelledError:
        last = begun.writer.cancelled()
    except Exception as error:
        last = begun.writer.failed(as_api_error(error))
    finally:
        answers.close()
        server.close_request()
    place.store.finish(place.owner, last)


def _input_items(response_id: str, items: Sequence[InputItem]) -> list[Any]:
    """Items as they are told of: each with an id."""
    told = []
    for number, item in enumerate(items):
        fields = item.model_dump(exclude_none=True)
        kind = fields.setdefault("type", "message")
        if "id" not in fields:
            digest = hashlib.sha256(f"{response_id}/in/{number}".encode()).hexdigest()
            fields["id"] = f"{_ITEM_PREFIXES.get(kind, 'msg')}_{digest[:24]}"
        fields.setdefault("status", "completed")
        told.append(fields)
    return told


def _json(response: ResponseObject) -> Response:
    return Response(response.model_dump_json(), media_type="application/json")
