"""What a server takes as the body of a request, before it looks into it."""

from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.sizes import format_bytes

_MOST_VALUES = 400_000
_MOST_STRINGS = 100_000
_MOST_CONTAINERS = 20_000
"""What one body may hold the event loop for: a number costs it some 50 ns, a string half a
microsecond to 2, an object or a list 1 to 10."""


def check_media_type(content_type: str | None, content_encoding: str | None) -> None:
    """Raises `ApiError` for headers that announce anything but plain JSON."""
    media_type = (content_type or "application/json").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json:
        message = f"Unsupported content type {media_type[:100]!r}; send 'application/json'."
        raise ApiError(415, message, code="unsupported_media_type", reason="invalid")
    encoding = (content_encoding or "identity").strip().lower()
    if encoding != "identity":
        message = f"Unsupported content encoding {encoding[:100]!r}; send the body as it is."
        raise ApiError(415, message, code="unsupported_media_type", reason="invalid")


def check_announced_length(content_length: str | None, limit: int) -> None:
    """Raises `ApiError` for a body that is announced to be larger than `limit` bytes."""
    announced = content_length or ""
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise too_large(limit)


def too_large(limit: int) -> ApiError:
    """The error for a body of more than `limit` bytes."""
    return ApiError(
        413,
        f"The request body is larger than the {format_bytes(limit)} that this server takes.",
        code="request_too_large",
        headers={"Connection": "close"},
        reason="too_large",
    )


def check_elements(data: bytes) -> None:
    """Refuses bodies of very many small values, whatever fields they are in: each costs the event
    loop time, and those of a long text are few. Raises `ApiError`."""
    if _fits(data):
        return
    unescaped = _without_escapes(data)
    if unescaped.count(b'"') <= 2 * _MOST_STRINGS and _fits(_emptied(unescaped)):
        return
    raise ApiError(
        413,
        f"The request body has more than {_MOST_VALUES} values, {_MOST_STRINGS} strings or "
        f"{_MOST_CONTAINERS} objects and lists; send it in parts.",
        code="request_too_large",
        reason="too_large",
    )


def outside_of_strings(data: bytes) -> bytes:
    """JSON with nothing in its strings."""
    return _emptied(_without_escapes(data))


def _without_escapes(data: bytes) -> bytes:
    """JSON has backslashes in strings only: now each quote begins or ends a string."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"")


def _emptied(unescaped: bytes) -> bytes:
    return b'""'.join(unescaped.split(b'"')[::2])


def _fits(data: bytes) -> bool:
    """Whether a body is within the bounds even if all that looks like a value is one."""
    return (
        data.count(b",") <= _MOST_VALUES
        and data.count(b'"') <= 2 * _MOST_STRINGS
        and data.count(b"{") + data.count(b"[") <= _MOST_CONTAINERS
    )
