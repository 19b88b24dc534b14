"""`POST /v1/embeddings`."""

import base64
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import renamed
from pagelet.agent.http.gate import context_of, use_request_id
from pagelet.agent.http.pooled import names_of, pool_prompts
from pagelet.agent.http.server import Server, server_of
from pagelet.engine.vectors import Vector, normalized
from pagelet.process.disconnect import run_until_disconnect
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.embeddings import MOST_INPUTS, EmbeddingRequest

router = APIRouter()


@router.post("/v1/embeddings")
async def create_embeddings(request: Request) -> Response:
    """A vector of length 1 for each input."""
    server = server_of(request)
    body = await parse_body(request, EmbeddingRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    return await run_until_disconnect(request.receive, _embed(request, server, body))


async def _embed(request: Request, server: Server, body: EmbeddingRequest) -> Response:
    inputs = body.inputs()
    check_embeds(server)
    if len(inputs) > MOST_INPUTS:
        raise InvalidRequest(
            f"input has {len(inputs)} texts and may have {MOST_INPUTS}: split it", "input"
        )
    size = server.llm.config.hidden_size
    if body.dimensions is not None and body.dimensions > size:
        raise InvalidRequest(
            f"this model's vectors have {size} dimensions: lower 'dimensions' from "
            f"{body.dimensions} to at most that",
            "dimensions",
        )
    context = context_of(request)
    try:
        prompts = await token_ids(server, inputs, body.add_special_tokens is not False)
        vectors, usage = await pool_prompts(
            server, prompts, body, context.request_id, names_of("input", len(inputs))
        )
    except InvalidRequest as error:
        raise renamed(error, {"prompt": "input"}) from error
    context.note_usage(usage)
    shortened = [vector[: body.dimensions] for vector in vectors]
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, body)}
            for index, vector in enumerate(normalized(shortened))
        ],
        "model": body.model,
        "usage": usage.model_dump(),
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def token_ids(
    server: Server, inputs: list[str | list[int]], add_special_tokens: bool
) -> list[list[int]]:
    """Of each input, which may be token ids already."""
    texts = [text for text in inputs if isinstance(text, str)]
    encoded = iter(await server.llm.encode_batch(texts, add_special_tokens))
    return [next(encoded) if isinstance(given, str) else given for given in inputs]


def check_embeds(server: Server) -> None:
    """Raises InvalidRequest for a model that gives no vectors."""
    pooling = server.llm.config.pooling
    if pooling is None:
        raise InvalidRequest(
            "this model generates and gives no vectors: send the input to a server that was "
            "started with a model for that, or with --task embed"
        )
    if pooling.task != "embed":
        raise InvalidRequest("this model gives scores and no vectors: ask /v1/score or /v1/rerank")


def _encoded(vector: Vector, body: EmbeddingRequest) -> Any:
    if body.encoding_format == "float":
        return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
