"""Hands a conversation to the engine, whichever API it came by."""

import asyncio
from collections.abc import Mapping

from pydantic import ValidationError

from pagelet.agent.http.answers import Answers, given_prompts
from pagelet.agent.http.message_plan import MessagePlan
from pagelet.agent.http.sampling import chat_sampling
from pagelet.agent.http.server import Server
from pagelet.engine.processor import truncated
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.errors import describe
from pagelet.protocol.openai.routing import RouterHints


async def start_conversation(
    server: Server, body: ChatCompletionRequest, answers: Answers, request_id: str
) -> tuple[list[int], MessagePlan | None]:
    """The prompt, and how its answers, which have been started, are to be read.

    Raises `InvalidRequest` or `EngineDead`.
    """
    hints = body.pagelet or RouterHints()
    if hints.prompt_token_ids is None:
        messages = [message.for_template() for message in body.messages]
        prompt = await server.llm.render_chat(messages, **body.template_options())
    else:
        [prompt] = given_prompts(hints.prompt_token_ids, 1)
    sampling = chat_sampling(body)
    room = server.llm.max_model_len - (sampling.max_tokens or 1)
    prompt = truncated(prompt, body.truncate_prompt_tokens, room)
    if body.callable_tools:  # reading their schemas may take long
        plan = await asyncio.to_thread(server.message_forms.plan, body, prompt, sampling)
    else:
        plan = server.message_forms.plan(body, prompt, sampling)
    await answers.start([prompt], sampling, body, request_id, plan)
    return prompt, plan


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """A finding under the name of the field that the client sent, also where its words begin with
    the name."""
    if error.param is None or error.param not in names:
        return error
    param, message = names[error.param], str(error)
    for quote in ("", "'"):
        named = f"{quote}{error.param}{quote}"
        if message.startswith((f"{named} ", f"{named}:")):
            message = f"{quote}{param}{quote}{message[len(named) :]}"
    return InvalidRequest(message, param, error.code)


def finding(error: ValidationError, names: Mapping[str, str]) -> InvalidRequest:
    """The first finding about a translated request, under the name of the client's field."""
    detail = describe(error.errors(include_url=False, include_input=False)[0])
    return renamed(InvalidRequest(detail.message, detail.param, detail.code), names)
