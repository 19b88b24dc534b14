"""Request bodies: bounded, JSON, and valid, or an error that says what is wrong."""

from starlette.requests import Request

from pagelet.protocol.openai.http_body import (
    check_announced_length,
    check_elements,
    check_media_type,
    too_large,
)
from pagelet.protocol.openai.parse import Body, parse


async def parse_body(request: Request, model: type[Body], limit: int) -> Body:
    """Reads at most `limit` bytes and validates them. Raises `ApiError`."""
    check_media_type(request.headers.get("content-type"), request.headers.get("content-encoding"))
    data = await _read(request, limit)
    check_elements(data)
    return parse(data, model)


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
