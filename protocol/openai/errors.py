"""Errors in OpenAI's shape, and pydantic's findings in their words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec


class ErrorDetail(msgspec.Struct, kw_only=True):
    """`type` is the class of error, `code` a name to branch on, `param` the field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct):
    """The body of every answer that is not a success."""

    error: ErrorDetail

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


RESPONSES: Final = "/v1/responses"
"""The path of an API that has an event of its own for what goes wrong in a stream."""
INPUT_TOKENS: Final = f"{RESPONSES}/input_tokens"
"""Where what a response would read is counted."""


def response_error_event(error: "ApiError", sequence_number: int) -> bytes:
    """The last event of a stream of `RESPONSES` whose response is not at hand."""
    event = {
        "type": "error",
        "sequence_number": sequence_number,
        "code": error.detail.code or error.detail.type,
        "message": error.detail.message,
        "param": error.detail.param,
    }
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(event)


def error_type(status: int) -> str:
    """OpenAI's error type for an HTTP status. That of 429 says what there were too many of."""
    if status >= 500:
        return "server_error"
    return {403: "permission_error", 429: "requests"}.get(status, "invalid_request_error")


class ApiError(Exception):
    """An error to answer with; `reason` is its label in the metric of rejected requests."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        reason: str | None = None,
    ) -> None:
        """`type` in place of the status's usual one."""
        super().__init__(message)
        self.status = status
        self.detail = ErrorDetail(
            message=message, type=type or error_type(status), param=param, code=code
        )
        self.headers = headers
        self.reason = reason


def retry_after(seconds: float) -> str:
    """A Retry-After header: whole seconds, at least one."""
    return str(max(1, math.ceil(seconds)))


_SHOWN = 200
"""Longest part of a request that an error repeats, in characters."""


def param_name(location: Sequence[int | str]) -> str | None:
    """`messages[0].content` for ("messages", 0, "content"), without pydantic's own tags."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not part.startswith(("<", "[")):
            name += f".{part}" if name else part
    return name[:_SHOWN] or None


def _items(count: int) -> str:
    return f"{count} item" if count == 1 else f"{count} items"


def describe(error: Mapping[str, Any]) -> ErrorDetail:
    """One of `pydantic.ValidationError.errors()` as OpenAI's API would say it."""
    kind: str = error["type"]
    context: Mapping[str, Any] = error.get("ctx") or {}
    param = context.get("param") or param_name(error["loc"])
    message: str = context.get("message") or error["msg"]
    code: str | None = "invalid_value"
    if kind == "json_invalid":
        code = None
        message = f"We could not parse the JSON body of your request: {context['error']}"
    elif kind in ("model_type", "model_attributes_type") and param is None:
        code = None
        message = "The body of the request must be a JSON object."
    elif kind == "extra_forbidden":
        code = "unknown_parameter"
        message = f"Unrecognized request argument supplied: {param}"
    elif kind == "missing":
        code = "missing_required_parameter"
        message = f"Missing required parameter: '{param}'."
    elif kind == "too_short" and "message" not in context:
        least, found = context["min_length"], context["actual_length"]
        message = f"'{param}' needs at least {_items(least)}, and has {found}."
    elif kind == "too_long" and "message" not in context:
        message = f"'{param}' takes at most {_items(context['max_length'])}."
    elif "message" in context:
        code = kind
        message = f"'{param}' {message}." if param else message
    else:
        code = "invalid_type" if kind.endswith("_type") else code
        message = f"Invalid value for '{param}': {message[0].lower()}{message[1:]}."
    return ErrorDetail(message=message, type="invalid_request_error", param=param, code=code)
