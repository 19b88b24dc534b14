"""Every answer that is not a success, in the shape of the API that was asked."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from pagelet.engine.outputs import EngineAbsent, EngineDead
from pagelet.protocol.anthropic.errors import error_body
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.errors import ApiError, describe, retry_after

_DRAINED_IN = 1.0
_ENGINE_BACK_IN = 5.0
"""Seconds after which a client may try again when the engine is down."""


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an error; one that nobody expected tells it nothing."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            code = error.code or "invalid_value"
            return ApiError(400, str(error), param=error.param, code=code, reason="invalid")
        case EngineDead():
            return ApiError(
                503,
                str(error),
                code="engine_starting" if isinstance(error, EngineAbsent) else "engine_unavailable",
                headers={"Retry-After": retry_after(_ENGINE_BACK_IN)},
                reason="engine_down",
            )
        case _:
            return ApiError(500, "The server had an error while processing your request.")


def draining() -> ApiError:
    """For requests that come, or have not come as a whole, while the server drains."""
    return ApiError(
        503,
        "The server is shutting down; send the request to another replica.",
        code="draining",
        headers={"Retry-After": retry_after(_DRAINED_IN), "Connection": "close"},
        reason="draining",
    )


def error_response(error: ApiError, path: str = "") -> Response:
    """The HTTP answer to a request to that path, in the shape of its API."""
    return Response(
        error_body(path, error),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def _answer(request: Request, error: ApiError) -> Response:
    request.scope["pagelet.context"].note_error(error)
    return error_response(error, request.url.path)


async def _on_error(request: Request, error: Exception) -> Response:
    api_error = as_api_error(error)
    if api_error.reason is not None:
        request.app.state.server.metrics.on_rejected(api_error.reason)
    return _answer(request, api_error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path[:200]}"
    code = {404: "unknown_url", 405: "method_not_allowed"}.get(error.status_code)
    headers = error.headers
    if error.status_code == 405:
        headers = {"Allow": _allowed(request)}
    return _answer(request, ApiError(error.status_code, message, code=code, headers=headers))


def _allowed(request: Request) -> str:
    """The methods of a path, which may have a handler for each: the framework tells of one."""
    methods = [
        method
        for method in ("DELETE", "GET", "POST")
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    ]
    return ", ".join([*methods, "HEAD"] if "GET" in methods else methods)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()[0]
    detail = describe(found | {"loc": found["loc"][1:]})  # without "query"
    return _answer(request, ApiError(400, detail.message, param=detail.param, code=detail.code))


def add_error_handlers(app: FastAPI) -> None:
    """Answers errors of handlers, and requests that no handler takes."""
    app.add_exception_handler(ApiError, _on_error)
    app.add_exception_handler(InvalidRequest, _on_error)
    app.add_exception_handler(EngineDead, _on_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
