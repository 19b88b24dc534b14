"""The vectors of an HTTP request's prompts: admitted together, ended together."""

from collections.abc import Sequence

import numpy as np

from pagelet.agent.http.answers import admit, check_priority
from pagelet.agent.http.conversation import renamed
from pagelet.agent.http.server import Server
from pagelet.engine.outputs import EngineDead
from pagelet.engine.processor import truncated
from pagelet.engine.request_stream import RequestStream
from pagelet.engine.vectors import Vector
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.common import Usage, make_usage
from pagelet.protocol.openai.pooling import PoolingRequest
from pagelet.protocol.openai.routing import RouterHints


def names_of(field: str, count: int) -> list[str]:
    """What a field's texts are called in errors."""
    return [field] if count == 1 else [f"{field}[{number}]" for number in range(count)]


async def pool_prompts(
    server: Server,
    prompts: Sequence[list[int]],
    body: PoolingRequest,
    request_id: str,
    names: Sequence[str],
) -> tuple[list[Vector], Usage]:
    """A vector each, as the model gives it; `names` are what the prompts are called in errors.

    Raises `ApiError`, `InvalidRequest` or `EngineDead`.
    """
    llm = server.llm
    check_priority(server, body.priority)
    hints = body.pagelet or RouterHints()
    lora = server.adapter_of(body.model)
    limit = body.truncate_prompt_tokens
    streams: list[RequestStream] = []
    most = server.admission.bound
    if most is not None and len(prompts) > most:
        raise InvalidRequest(
            f"{len(prompts)} texts, and this server takes at most {most} at once (--max-queue): "
            "split them",
            "input",
        )
    admit(server, len(prompts))
    try:
        for number, prompt in enumerate(prompts):
            try:
                stream = llm.pool(
                    truncated(prompt, limit, llm.max_model_len),
                    request_id=request_id if len(prompts) == 1 else f"{request_id}-{number}",
                    priority=body.priority or 0,
                    cache_salt=body.cache_salt if hints.cache_salt is None else hints.cache_salt,
                    shared_prefix_tokens=hints.shared_prefix_tokens,
                    lora=lora,
                )
            except InvalidRequest as error:
                raise renamed(error, dict.fromkeys(("prompt", "input"), names[number])) from error
            streams.append(stream)
            server.metrics.on_request(stream.engine_index, 1)
        vectors, cached = [], 0
        for stream in streams:
            async for output in stream:
                if output.pooled is None:
                    raise EngineDead(output.error or "the answer was broken off")
                vectors.append(np.frombuffer(output.pooled, np.float32))
                cached += output.num_cached_tokens
    finally:
        for stream in streams:
            stream.close()
        server.admission.release(len(prompts))
    return vectors, make_usage(sum(stream.num_prompt_tokens for stream in streams), 0, cached)
