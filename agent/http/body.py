"""Request bodies: bounded, JSON, and valid, or an error that says what is wrong."""

from typing import TypeVar

import msgspec
from pydantic import ValidationError
from starlette.requests import Request

from pagelet.protocol.openai.errors import ApiError, describe
from pagelet.protocol.openai.fields import RequestBody

Body = TypeVar("Body", bound=RequestBody)

_MOST_ELEMENTS = 400_000
_MANY_ERRORS = 1000
"""Errors of one body that are still worth spelling out, which costs memory for each."""


async def parse_body(request: Request, model: type[Body], limit: int) -> Body:
    """Reads at most `limit` bytes and validates them. Raises `ApiError`."""
    _check_media_type(request)
    data = await _read(request, limit)
    _check_elements(data)
    _check_names(data, model)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        if error.error_count() > _MANY_ERRORS:
            message = f"The body of the request has {error.error_count()} errors."
            raise ApiError(400, message, reason="invalid") from None
        detail = describe(error.errors(include_url=False, include_input=False)[0])
        raise ApiError(
            400, detail.message, param=detail.param, code=detail.code, reason="invalid"
        ) from None


def _check_elements(data: bytes) -> None:
    """Refuses bodies of very many small values, each of which costs the event loop a microsecond
    or more; those of a long text are few. Commas inside of strings are counted too."""
    if data.count(b",") > _MOST_ELEMENTS:
        raise ApiError(
            413,
            f"The request body has more than {_MOST_ELEMENTS} elements; send it in parts.",
            code="request_too_large",
            reason="too_large",
        )


def _check_names(data: bytes, model: type[RequestBody]) -> None:
    """Refuses the first name that the API does not have. Pydantic would make an error of every
    one, which for a body full of them takes seconds of the event loop."""
    try:
        names = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return  # no JSON object, or nested without end: pydantic says what is wrong
    known = model.model_fields
    for name in names:
        if name not in known:
            detail = describe({"type": "extra_forbidden", "loc": (name,), "msg": ""})
            raise ApiError(
                400, detail.message, param=detail.param, code=detail.code, reason="invalid"
            )


def _check_media_type(request: Request) -> None:
    content_type = request.headers.get("content-type", "application/json")
    media_type = content_type.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json:
        message = f"Unsupported content type {media_type[:100]!r}; send 'application/json'."
        raise ApiError(415, message, code="unsupported_media_type", reason="invalid")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"Unsupported content encoding {encoding[:100]!r}; send the body as it is."
        raise ApiError(415, message, code="unsupported_media_type", reason="invalid")


async def _read(request: Request, limit: int) -> bytes:
    """The body; what was announced is checked first, then what really comes."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"The request body is larger than the {limit} bytes that this server takes.",
        code="request_too_large",
        headers={"Connection": "close"},
        reason="too_large",
    )
