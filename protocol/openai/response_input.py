"""What a request for a response may have as its input."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from pagelet.protocol.kinds import as_text_part, only_kinds, refusals_as_text
from pagelet.protocol.openai.fields import RequestBody, one_of, unsupported


class InputPart(RequestBody):
    """Text. Fields that clients copy from an answer into the history are known here."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    prompt_cache_breakpoint: Any = None


_PART_KINDS = ("input_text", "output_text", "text")
InputParts = Annotated[
    list[InputPart],
    Field(fail_fast=True),
    only_kinds("a part", *_PART_KINDS),
    refusals_as_text("output_text"),
    as_text_part("input_text"),
    one_of(str, list),
]


class InputMessage(RequestBody):
    """A turn of anyone, also one of the model's as an answer had it."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: InputParts
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class InputCall(RequestBody):
    """A call that the model made; `arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    caller: Annotated[Any, unsupported()] = None
    namespace: Annotated[Any, unsupported()] = None


class InputCallOutput(RequestBody):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: InputParts
    id: str | None = None
    status: str | None = None


class InputThought(RequestBody):
    """A part of what the model thought."""

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(RequestBody):
    """What the model thought, as an answer had it. `summary` is not shown to the model again."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] | None = None
    content: Annotated[list[InputThought], Field(fail_fast=True)] | None = None
    status: str | None = None
    encrypted_content: Annotated[Any, unsupported(remedy="'content' has it in the open")] = None


LONGEST_ID = 256
"""Of an item that is referred to, in characters."""


class ItemReference(RequestBody):
    """An item of a response that is stored, by its id."""

    type: Literal["item_reference"] | None = None
    id: Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]


_ITEM_KINDS = ("message", "function_call", "function_call_output", "reasoning")
_REFERENCE = "item_reference"


def _item_kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "<message>"
    kind = value.get("type")
    if kind == _REFERENCE or (kind is None and "id" in value and "role" not in value):
        return f"<{_REFERENCE}>"
    return f"<{kind}>" if kind in _ITEM_KINDS else "<message>"


InputItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[InputCall, Tag("<function_call>")]
    | Annotated[InputCallOutput, Tag("<function_call_output>")]
    | Annotated[InputReasoning, Tag("<reasoning>")],
    Discriminator(_item_kind),
]
GivenItem = Annotated[
    Annotated[InputMessage, Tag("<message>")]
    | Annotated[InputCall, Tag("<function_call>")]
    | Annotated[InputCallOutput, Tag("<function_call_output>")]
    | Annotated[InputReasoning, Tag("<reasoning>")]
    | Annotated[ItemReference, Tag("<item_reference>")],
    Discriminator(_item_kind),
]


def _as_message(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


_MOST_ITEMS = 8192
"""As many as messages in chat completions."""
InputItems = Annotated[
    list[GivenItem],
    Field(min_length=1, max_length=_MOST_ITEMS, fail_fast=True),
    only_kinds("an item", *_ITEM_KINDS, _REFERENCE),
    BeforeValidator(_as_message),
    one_of(str, list),
]
"""What a request gives."""
KeptItems = Annotated[
    list[InputItem],
    Field(max_length=_MOST_ITEMS, fail_fast=True),
    only_kinds("an item", *_ITEM_KINDS),
]
"""What was kept of others."""
