"""`POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from pagelet.agent.http.body import parse_body
from pagelet.agent.http.server import Server, server_of
from pagelet.protocol.errors import InvalidRequest, ModelSourceError
from pagelet.protocol.openai.adapters import LoadAdapterRequest, UnloadAdapterRequest
from pagelet.protocol.openai.errors import ApiError

router = APIRouter()


@router.post("/v1/load_lora_adapter")
async def load_adapter(request: Request) -> Response:
    """Requests may name the adapter as soon as this is answered."""
    server = server_of(request)
    body = await parse_body(request, LoadAdapterRequest, server.settings.max_body_bytes)
    _check_allowed(server)
    name, adapters = body.lora_name, server.llm.adapters
    if name in server.llm.served_model_names:
        raise InvalidRequest(f"{name!r} is the model's own name: give another", "lora_name")
    _check_is_new(server, body)
    try:
        adapter = await asyncio.to_thread(adapters.read, name, body.lora_path)
    except ModelSourceError as error:
        raise InvalidRequest(str(error), "lora_path") from error
    _check_is_new(server, body)  # another request may have loaded it meanwhile
    adapters.add(adapter)
    return PlainTextResponse(f"Success: adapter {name!r} is loaded.")


def _check_is_new(server: Server, body: LoadAdapterRequest) -> None:
    if body.lora_name in server.llm.adapters and not body.load_inplace:
        raise InvalidRequest(
            f"an adapter {body.lora_name!r} is loaded already: unload it, or give "
            "'load_inplace': true",
            "lora_name",
        )


@router.post("/v1/unload_lora_adapter")
async def unload_adapter(request: Request) -> Response:
    """Requests that run with the adapter go on to their end."""
    server = server_of(request)
    body = await parse_body(request, UnloadAdapterRequest, server.settings.max_body_bytes)
    _check_allowed(server)
    adapters = server.llm.adapters
    if body.lora_name not in adapters:
        listed = ", ".join(map(repr, adapters)) or "none"
        raise ApiError(
            404,
            f"there is no adapter {body.lora_name[:200]!r}; loaded: {listed}",
            param="lora_name",
            reason="invalid",
        )
    adapters.remove(body.lora_name)
    return PlainTextResponse(f"Success: adapter {body.lora_name!r} is unloaded.")


def _check_allowed(server: Server) -> None:
    options = server.llm.adapters.options
    if not options.enabled or not options.allow_updates:
        raise ApiError(
            403,
            "this server's adapters stay as they were at its start: start it with --enable-lora "
            "and --allow-lora-updates to load others",
            reason="auth",
        )
