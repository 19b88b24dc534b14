"""Request bodies: bounded, JSON, and valid, or an error that says what is wrong."""

from typing import TypeVar

import msgspec
from pydantic import ValidationError
from starlette.requests import Request

from pagelet.protocol.openai.errors import ApiError, describe
from pagelet.protocol.openai.fields import RequestBody
from pagelet.protocol.openai.http_body import (
    check_announced_length,
    check_elements,
    check_media_type,
    too_large,
)

Body = TypeVar("Body", bound=RequestBody)

_MANY_ERRORS = 1000
"""Errors of one body that are still worth spelling out, which costs memory for each."""


async def parse_body(request: Request, model: type[Body], limit: int) -> Body:
    """Reads at most `limit` bytes and validates them. Raises `ApiError`."""
    check_media_type(request.headers.get("content-type"), request.headers.get("content-encoding"))
    data = await _read(request, limit)
    check_elements(data)
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


async def _read(request: Request, limit: int) -> bytes:
    """The body; what was announced is checked first, then what really comes."""
    check_announced_length(request.headers.get("content-length"), limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)
