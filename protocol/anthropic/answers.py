"""Answers of Anthropic's API."""

from typing import Any, Literal

from pagelet.protocol.openai.fields import ResponseBody

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(ResponseBody):
    """What was read and written, in tokens. `input_tokens` are those that no cache had."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(ResponseBody):
    """A message of the model's."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(ResponseBody):
    """Of a conversation, as the model would read it."""

    input_tokens: int
