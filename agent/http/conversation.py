"""Hands a conversation to the engine, whichever API it came by."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pydantic import ValidationError

from pagelet.agent.http.answers import Answers, given_prompts
from pagelet.agent.http.fitting import can_fit, fitting_prompt
from pagelet.agent.http.message_plan import MessagePlan
from pagelet.agent.http.sampling import chat_sampling
from pagelet.agent.http.server import Server
from pagelet.engine.processor import RequestedSampling, truncated
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import ChatCompletionRequest, Message
from pagelet.protocol.openai.errors import describe
from pagelet.protocol.openai.routing import RouterHints


async def prompt_of(
    server: Server, body: ChatCompletionRequest, fit_to: int | None = None
) -> list[int]:
    """By the model's chat template. With `fit_to` without what is oldest, if it has more tokens
    than that. Raises `InvalidRequest`."""
    render = _renderer(server, body)
    if fit_to is None:
        return await render(body.messages)
    return await fitting_prompt(body.messages, fit_to, render)


async def fits_without_oldest(server: Server, body: ChatCompletionRequest, room: int) -> bool:
    """Whether a conversation that has more than `room` tokens has less without what is oldest."""
    return await can_fit(body.messages, room, _renderer(server, body))


def _renderer(
    server: Server, body: ChatCompletionRequest
) -> Callable[[Sequence[Message]], Awaitable[list[int]]]:
    options = body.template_options()
    special = body.add_special_tokens is True

    async def render(messages: Sequence[Message]) -> list[int]:
        told = [message.for_template() for message in messages]
        return await server.llm.render_chat(told, add_special_tokens=special, **options)

    return render


async def start_conversation(
    server: Server,
    body: ChatCompletionRequest,
    answers: Answers,
    request_id: str,
    *,
    drops_oldest: bool = False,
) -> tuple[list[int], MessagePlan | None]:
    """The prompt, and how its answers, which have been started, are to be read. With
    `drops_oldest` a conversation that is too long loses what is oldest in it.

    Raises `InvalidRequest` or `EngineDead`.
    """
    hints = body.pagelet or RouterHints()
    sampling = chat_sampling(body)
    room = server.llm.max_model_len - (sampling.max_tokens or 1)
    if hints.prompt_token_ids is None:
        prompt = await prompt_of(server, body, room if drops_oldest else None)
    else:
        [prompt] = given_prompts(hints.prompt_token_ids, 1)
    prompt = truncated(prompt, body.truncate_prompt_tokens, room)
    plan = await planned(server, body, prompt, sampling)
    await answers.start([prompt], sampling, body, request_id, plan)
    return prompt, plan


async def planned(
    server: Server, body: ChatCompletionRequest, prompt: list[int], sampling: RequestedSampling
) -> MessagePlan | None:
    """See `MessageForms.plan`."""
    if body.callable_tools:  # reading their schemas may take long
        return await asyncio.to_thread(server.message_forms.plan, body, prompt, sampling)
    return server.message_forms.plan(body, prompt, sampling)


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """A finding under the name of the field that the client sent, also where its words begin with
    the name. Names that begin with a dot are of the ends of others."""
    if error.param is None:
        return error
    param, message = error.param, str(error)
    if param in names:
        param = names[param]
    for end, own in names.items():
        if end.startswith(".") and param.endswith(end):
            param = param.removesuffix(end) + own
    for quote in ("", "'"):
        named = f"{quote}{error.param}{quote}"
        if message.startswith((f"{named} ", f"{named}:")):
            message = f"{quote}{param}{quote}{message[len(named) :]}"
    return InvalidRequest(message, param, error.code)


def finding(error: ValidationError, names: Mapping[str, str]) -> InvalidRequest:
    """The first finding about a translated request, under the name of the client's field."""
    detail = describe(error.errors(include_url=False, include_input=False)[0])
    return renamed(InvalidRequest(detail.message, detail.param, detail.code), names)
