"""`POST /v1/responses`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.answers import Answers
from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import renamed, start_conversation
from pagelet.agent.http.event_stream import EventStream, respond
from pagelet.agent.http.gate import context_of, use_request_id
from pagelet.agent.http.items import ItemReader
from pagelet.agent.http.journal import JournaledItems, began, failed
from pagelet.agent.http.responses.events import ResponseEvents
from pagelet.agent.http.responses.output import ResponseWriter
from pagelet.agent.http.responses.request import NAMES, chat_request
from pagelet.agent.http.server import Server, server_of
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.errors import RESPONSES
from pagelet.protocol.openai.responses import ResponseRequest
from pagelet.protocol.openai.routing import RouterHints

router = APIRouter()


@router.post(RESPONSES)
async def create_response(request: Request) -> Response:
    """Answers what is asked in `input`; nothing is stored."""
    server = server_of(request)
    body = await parse_body(request, ResponseRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    answers = Answers(server, 1, 1)
    return await respond(request, answers, _respond(request, server, body, answers))


async def _respond(
    request: Request, server: Server, body: ResponseRequest, answers: Answers
) -> Response:
    context = context_of(request)
    try:
        _, plan = await start_conversation(server, chat_request(body), answers, context.request_id)
    except InvalidRequest as error:
        raise renamed(error, NAMES) from error
    if body.wants_logprobs and plan is not None:
        raise InvalidRequest(
            "logprobs are not available for answers that may think or call tools",
            "include",
            "unsupported_parameter",
        )
    response_id = f"resp_{context.request_id}"
    hints = body.pagelet or RouterHints()
    resume = hints.resume
    reader = ItemReader(plan, response_id)
    writer = ResponseWriter(body, response_id, reader, began(hints))
    if body.stream:
        events = ResponseEvents(writer, reader, answers.usage, resume.events if resume else 0)
        if hints.journal and not body.wants_logprobs:  # the last events repeat all logprobs
            journaled = JournaledItems(events, resume)
            return await EventStream.open(
                answers, journaled, context, lambda error: failed(events.fail(error), error)
            )
        return await EventStream.open(answers, events, context, events.fail)
    async for _, output in answers:
        reader.push(output)
    usage = answers.usage()
    context.note_usage(usage)
    return Response(writer.whole(usage).model_dump_json(), media_type="application/json")
