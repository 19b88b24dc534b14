"""`POST /v1/score` and `POST /v1/rerank`, also without `/v1`."""

import time
from collections.abc import Sequence

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from pagelet.agent.http.body import parse_body
from pagelet.agent.http.conversation import renamed
from pagelet.agent.http.embeddings import token_ids
from pagelet.agent.http.gate import context_of, use_request_id
from pagelet.agent.http.pooled import names_of, pool_prompts
from pagelet.agent.http.server import Server, server_of
from pagelet.engine.model_config import PoolingConfig
from pagelet.engine.vectors import cosines, normalized
from pagelet.process.disconnect import run_until_disconnect
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.common import Usage
from pagelet.protocol.openai.pooling import PoolingRequest
from pagelet.protocol.openai.scores import MOST_TEXTS, RerankRequest, ScoreRequest

router = APIRouter()


@router.post("/v1/score")
@router.post("/score")
async def create_scores(request: Request) -> Response:
    """A score for each pair of texts, higher for a better match."""
    server = server_of(request)
    body = await parse_body(request, ScoreRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    first, second = body.texts()
    context = context_of(request)
    scores, usage = await run_until_disconnect(
        request.receive,
        _named_scores(server, first, second, body, context.request_id, body.names),
    )
    context.note_usage(usage)
    answer = {
        "id": f"score-{context.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model,
        "data": [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(scores)
        ],
        "usage": usage.model_dump(),
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


@router.post("/v2/rerank")
@router.post("/v1/rerank")
@router.post("/rerank")
async def rerank(request: Request) -> Response:
    """The documents that answer the query, the best first."""
    server = server_of(request)
    body = await parse_body(request, RerankRequest, server.settings.max_body_bytes)
    body.model = server.check_model(body.model)
    use_request_id(request, body.request_id)
    texts = body.texts()
    context = context_of(request)
    scores, usage = await run_until_disconnect(
        request.receive,
        _named_scores(
            server, [body.query], texts, body, context.request_id, ("query", "documents")
        ),
    )
    context.note_usage(usage)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    results: list[dict[str, object]] = [
        {"index": index, "relevance_score": scores[index]} for index in order[: body.top_n or None]
    ]
    if body.return_documents:
        for result, index in zip(results, order, strict=False):
            result["document"] = {"text": texts[index]}
    answer = {
        "id": f"rerank-{context.request_id}",
        "model": body.model,
        "results": results,
        "usage": usage.model_dump(),
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _named_scores(
    server: Server,
    first: Sequence[str],
    second: Sequence[str],
    body: PoolingRequest,
    request_id: str,
    fields: tuple[str, str],
) -> tuple[list[float], Usage]:
    """As `_scores`; what is wrong with all prompts is wrong with the second field."""
    try:
        return await _scores(server, first, second, body, request_id, fields)
    except InvalidRequest as error:
        raise renamed(error, dict.fromkeys(("prompt", "input"), fields[1])) from error


async def _scores(
    server: Server,
    first: Sequence[str],
    second: Sequence[str],
    body: PoolingRequest,
    request_id: str,
    fields: tuple[str, str],
) -> tuple[list[float], Usage]:
    """Of each text of `second` with that of `first` in its place, or with its only one; `fields`
    are what they were given in."""
    names = [
        names_of(field, len(texts)) for field, texts in zip(fields, (first, second), strict=True)
    ]
    config = server.llm.config
    if config.pooling is None:
        raise InvalidRequest(
            "this model generates and gives no scores: send the texts to a server that was started "
            "with a model that embeds or scores, or with --score-tokens"
        )
    if len(second) > MOST_TEXTS:
        raise InvalidRequest(f"{len(second)} texts, and {MOST_TEXTS} are the most: split them")
    if config.pooling.task == "embed":
        texts = [*first, *second]
        prompts = await token_ids(server, list(texts), body.add_special_tokens is not False)
        vectors, usage = await pool_prompts(
            server, prompts, body, request_id, [*names[0], *names[1]]
        )
        unit = normalized(vectors)
        return cosines(unit[: len(first)], unit[len(first) :]), usage
    if config.num_labels > 1:
        raise InvalidRequest(
            f"this model tells {config.num_labels} classes apart, where a score needs a model with "
            "one label"
        )
    queries = first if len(first) > 1 else list(first) * len(second)
    prompts = await server.llm.encode_pairs(list(zip(queries, second, strict=True)))
    vectors, usage = await pool_prompts(server, prompts, body, request_id, names[1])
    return [_probability(vector.tolist(), config.pooling) for vector in vectors], usage


def _probability(outputs: Sequence[float], pooling: PoolingConfig) -> float:
    """Of yes: by the logits of no and yes, or by the only label's."""
    logit = outputs[1] - outputs[0] if pooling.score_tokens else outputs[0]
    return float(0.5 * (1 + np.tanh(logit / 2)))
