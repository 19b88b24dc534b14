"""Errors in Anthropic's shape, for requests to its paths."""

import msgspec

from pagelet.protocol.openai.errors import ApiError, ErrorResponse

MESSAGES = "/v1/messages"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(error: ApiError) -> bytes:
    """As JSON."""
    kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else _TYPES[400])
    detail = {"type": kind, "message": error.detail.message}
    return msgspec.json.encode({"type": "error", "error": detail})


def error_body(path: str, error: ApiError) -> bytes:
    """What a request to that path is answered with: each API has its own shape."""
    if _is_anthropics(path):
        return messages_error(error)
    return ErrorResponse(error.detail).encode()


def error_event(path: str, error: ApiError) -> bytes:
    """The last event of a stream that failed."""
    name = b"event: error\n" if _is_anthropics(path) else b""
    return b"%bdata: %b\n\n" % (name, error_body(path, error))


def _is_anthropics(path: str) -> bool:
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")
