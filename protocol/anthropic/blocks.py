"""The blocks that messages of a conversation are made of."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from pagelet.protocol.kinds import as_text_part, only_kinds
from pagelet.protocol.openai.fields import RequestBody, unsupported


class Block(RequestBody):
    """What any block may have."""

    cache_control: Any = None
    """A hint: every prompt's prefix is cached anyway."""


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str
    citations: Annotated[Any, unsupported([])] = None


TextBlocks = Annotated[
    list[TextBlock],
    Field(fail_fast=True),
    only_kinds("a block", "text"),
    as_text_part("text"),
]


class ThinkingBlock(Block):
    """What the model thought, as an answer had it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(Block):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None


class ToolResultBlock(Block):
    """What came of a call. A failure is told by its text alone."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextBlocks | None = None
    is_error: bool | None = None


def _kind(value: Any) -> str:
    return f"<{value.get('type')}>" if isinstance(value, dict) else "<text>"


_USER_KINDS = ("text", "tool_result")
_ASSISTANT_KINDS = ("text", "thinking", "tool_use")
UserBlocks = Annotated[
    list[
        Annotated[
            Annotated[TextBlock, Tag("<text>")] | Annotated[ToolResultBlock, Tag("<tool_result>")],
            Discriminator(_kind),
        ]
    ],
    Field(min_length=1, fail_fast=True),
    only_kinds("a block", *_USER_KINDS),
    as_text_part("text"),
]
AssistantBlocks = Annotated[
    list[
        Annotated[
            Annotated[TextBlock, Tag("<text>")]
            | Annotated[ThinkingBlock, Tag("<thinking>")]
            | Annotated[ToolUseBlock, Tag("<tool_use>")],
            Discriminator(_kind),
        ]
    ],
    Field(fail_fast=True),
    only_kinds("a block", *_ASSISTANT_KINDS),
    as_text_part("text"),
]
