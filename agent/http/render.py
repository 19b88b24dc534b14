"""`POST /v1/chat/completions/render` and `POST /v1/completions/render`: what a request comes to,
without answering it. Paths and fields are vLLM's: other routers get prompts' token ids here."""

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import prompt_of, renamed
from pagelet.agent.http.gate import context_of, use_request_id
from pagelet.agent.http.sampling import (
    chat_names,
    chat_sampling,
    completion_names,
    completion_sampling,
)
from pagelet.agent.http.server import Server, server_of
from pagelet.engine.processor import RequestedSampling
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.completions import CompletionRequest
from pagelet.protocol.openai.generation import GenerationRequest

router = APIRouter()


@router.post("/v1/chat/completions/render")
async def render_chat(request: Request) -> Response:
    """One object, of a conversation."""
    server = server_of(request)
    body = await parse_body(request, ChatCompletionRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    request_id = f"chatcmpl-{context_of(request).request_id}"
    try:
        prompt = await prompt_of(server, body)
        return _json(_rendered(server, request_id, body, prompt, chat_sampling(body)))
    except InvalidRequest as error:
        raise renamed(error, chat_names(body)) from error


@router.post("/v1/completions/render")
async def render_completions(request: Request) -> Response:
    """A list, with one object for each prompt."""
    server = server_of(request)
    body = await parse_body(request, CompletionRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    sampling = completion_sampling(body)
    rendered = []
    for number, prompt in enumerate(body.prompts()):
        if isinstance(prompt, str):
            prompt = await server.llm.encode(prompt, body.add_special_tokens is not False)
        request_id = f"cmpl-{context_of(request).request_id}-{number}"
        try:
            rendered.append(_rendered(server, request_id, body, prompt, sampling))
        except InvalidRequest as error:
            raise renamed(error, completion_names(body)) from error
    return _json(rendered)


def _rendered(
    server: Server,
    request_id: str,
    body: GenerationRequest,
    prompt: list[int],
    sampling: RequestedSampling,
) -> dict[str, Any]:
    """Raises `InvalidRequest` for what could not be answered."""
    first, *_ = server.llm.processor.process(
        prompt,
        sampling,
        request_id=request_id,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
    )
    params = msgspec.structs.replace(first.params, n=sampling.n or 1, seed=sampling.seed)
    return {
        "request_id": request_id,
        "model": body.model,
        "token_ids": prompt,
        "sampling_params": params,
        "stream": body.streams,
        "cache_salt": body.cache_salt,
        "priority": body.priority or 0,
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
