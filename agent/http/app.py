"""The OpenAI-compatible HTTP server as an ASGI application."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.middleware.cors import CORSMiddleware

from pagelet.agent.http import (
    adapters,
    chat,
    completions,
    embeddings,
    operations,
    render,
    replica,
    scores,
    tokens,
)
from pagelet.agent.http.errors import add_error_handlers
from pagelet.agent.http.gate import Gate
from pagelet.agent.http.messages import route as messages
from pagelet.agent.http.responses import count, stored
from pagelet.agent.http.responses import route as responses
from pagelet.agent.http.server import Server
from pagelet.agent.metrics import Metrics
from pagelet.agent.settings import ServeSettings
from pagelet.engine.async_llm import AsyncLLM
from pagelet.protocol.anthropic.requests import CountTokensRequest, MessagesRequest
from pagelet.protocol.openai.adapters import LoadAdapterRequest, UnloadAdapterRequest
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.completions import CompletionRequest
from pagelet.protocol.openai.embeddings import EmbeddingRequest
from pagelet.protocol.openai.fields import RequestBody
from pagelet.protocol.openai.rate_limits import rate_limit_names
from pagelet.protocol.openai.responses import ResponseRequest
from pagelet.protocol.openai.scores import RerankRequest, ScoreRequest
from pagelet.protocol.openai.tokenize import DetokenizeRequest, TokenizeRequest

_BODIES: dict[str, type[RequestBody]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions/render": ChatCompletionRequest,
    "/v1/completions/render": CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/v1/responses/input_tokens": ResponseRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/score": ScoreRequest,
    "/v1/rerank": RerankRequest,
    "/v1/load_lora_adapter": LoadAdapterRequest,
    "/v1/unload_lora_adapter": UnloadAdapterRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


def create_app(llm: AsyncLLM, settings: ServeSettings, metrics: Metrics) -> FastAPI:
    """The application; `app.state.server` is its `Server`, through which its owner drains it.

    `metrics` should be the observer of `llm`. Raises `OSError` if the key file cannot be read.
    """
    server = Server(llm, settings, metrics)
    app = FastAPI(title="Pagelet", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.server = server
    for module in (
        *(chat, completions, responses, count, stored, messages, embeddings, scores),
        *(tokens, operations, render, replica, adapters),
    ):
        app.include_router(module.router)
    add_error_handlers(app)
    app.add_middleware(Gate, server=server)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After", *rate_limit_names("requests")],
        )
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The schema with the request bodies, which handlers read themselves so as to bound them."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, definitions = models_json_schema(
            [(model, "validation") for model in _BODIES.values()],
            ref_template="#/components/schemas/{model}",
        )
        schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        for path, model in _BODIES.items():
            reference = {"$ref": f"#/components/schemas/{model.__name__}"}
            schema["paths"][path]["post"]["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": reference}},
            }
        app.openapi_schema = schema
    return app.openapi_schema
