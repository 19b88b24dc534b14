"""Messages and their blocks in Anthropic's shape, made of what was read of an answer."""

from typing import Any

from pydantic_core import from_json

from pagelet.agent.http.items import Item, ItemReader
from pagelet.protocol.anthropic.answers import MessageAnswer, MessageUsage, StopReason
from pagelet.protocol.openai.common import Usage


def message(message_id: str, model: str, reader: ItemReader, usage: Usage) -> MessageAnswer:
    """The whole message."""
    return MessageAnswer(
        id=message_id,
        model=model,
        content=[block(item) for item in reader.items],
        stop_reason=stop_reason(reader),
        stop_sequence=stop_sequence(reader),
        usage=message_usage(usage),
    )


def block(item: Item) -> dict[str, Any]:
    """An item with all that has come of it."""
    if item.kind == "text":
        return {"type": "text", "text": item.text}
    if item.kind == "reasoning":
        return {"type": "thinking", "thinking": item.text, "signature": ""}
    return {
        "type": "tool_use",
        "id": item.call_id,
        "name": item.name,
        "input": _input(item.text),
    }


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call, of one that was cut off as much as there is."""
    try:
        found = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def stop_reason(reader: ItemReader) -> StopReason:
    """Why the answer ended."""
    if reader.cut:
        return "max_tokens"
    if reader.calls:
        return "tool_use"
    return "end_turn" if stop_sequence(reader) is None else "stop_sequence"


def stop_sequence(reader: ItemReader) -> str | None:
    """The one that ended it."""
    return reader.stop if isinstance(reader.stop, str) else None


def message_usage(usage: Usage) -> MessageUsage:
    """As Anthropic counts: what a cache had is no input."""
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
    )
