"""Request bodies: bounded, JSON, and valid, or an error that says what is wrong."""

import asyncio
from typing import Final

from starlette.requests import Request

from pagelet.agent.http.errors import draining
from pagelet.agent.http.server import server_of
from pagelet.protocol.openai.http_body import (
    check_announced_length,
    check_elements,
    check_media_type,
    too_large,
)
from pagelet.protocol.openai.parse import Body, parse

_SHORT: Final = 1 << 16
"""Bytes that are validated at once. A longer body is, in a thread, one after the other: each of its
passes has Python's lock to itself, the longest for tens of milliseconds."""


async def parse_body(request: Request, model: type[Body], limit: int) -> Body:
    """Reads at most `limit` bytes and validates them. Raises `ApiError`."""
    check_media_type(request.headers.get("content-type"), request.headers.get("content-encoding"))
    data = await _read(request, limit)
    if len(data) <= _SHORT:
        return _checked(data, model)
    async with server_of(request).long_bodies:
        return await asyncio.to_thread(_checked, data, model)


def _checked(data: bytes, model: type[Body]) -> Body:
    check_elements(data)
    return parse(data, model)


async def _read(request: Request, limit: int) -> bytes:
    """The body; what was announced is checked first, then what really comes, if it does."""
    check_announced_length(request.headers.get("content-length"), limit)
    try:
        return await server_of(request).whole_body(_bounded(request, limit))
    except TimeoutError as error:
        raise draining() from error


async def _bounded(request: Request, limit: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)
