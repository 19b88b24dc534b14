"""Requests for a response: `POST /v1/responses`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from pagelet.protocol.kinds import only_kinds
from pagelet.protocol.openai.effort import Effort
from pagelet.protocol.openai.fields import (
    Integer,
    Metadata,
    Number,
    RequestBody,
    Schema,
    StringOrStrings,
    Timeout,
    TokenId,
    invalid,
    unsupported,
)
from pagelet.protocol.openai.generation import CacheRetention, ServiceTier
from pagelet.protocol.openai.response_input import InputItems, ItemReference
from pagelet.protocol.openai.routing import RouterHints
from pagelet.protocol.openai.tools import Name, choice_kind

_NO_CONVERSATIONS = "give 'previous_response_id', or the whole conversation in 'input'"
MOST_REFERENCES = 256
"""To stored items, in one request."""
LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (
    LOGPROBS,
    "reasoning.encrypted_content",
    *("web_search_call.results", "web_search_call.action.sources", "file_search_call.results"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    "code_interpreter_call.outputs",
)
"""Of the others, thinking comes in the open, and answers have no such calls and images."""


class FunctionTool(RequestBody):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Only true enforces the schema."""
    output_schema: Annotated[Any, unsupported()] = None
    defer_loading: Annotated[Any, unsupported(False)] = None
    allowed_callers: Annotated[Any, unsupported(["direct"])] = None


class NamedFunction(RequestBody):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class AllowedFunctions(RequestBody):
    """Only some of the functions may be called; the model is not told of the others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=128, fail_fast=True)]


def _choice(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in ("function", "allowed_tools"):
        message = f"of type {kind[:64]!r} is not supported here; only a 'function' can be named"
        raise PydanticCustomError("unsupported_type", "{message}", {"message": message})
    return value


class TextFormat(RequestBody):
    """What the answer must match. It does whether or not it is `strict`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TextFormat":
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise invalid("text.format.schema", "goes with the type 'json_schema'")
        return self


class TextConfig(RequestBody):
    """How the answer is to look."""

    format: TextFormat | None = None
    verbosity: Annotated[Any, unsupported("medium")] = None


class ResponseReasoning(RequestBody):
    """What thinking models do is their template's business. The most that can be shown of their
    thinking is all of it."""

    effort: Effort | None = None
    summary: Annotated[Any, unsupported("auto", remedy="the whole thinking is in the answer")] = (
        None
    )
    generate_summary: Annotated[Any, unsupported("auto")] = None


class ResponseStreamOptions(RequestBody):
    """Nothing can be chosen."""

    include_obfuscation: Annotated[Any, unsupported(False)] = None


class ResponseRequest(RequestBody):
    """`max_output_tokens` defaults to what is left of the model's context."""

    model: str
    input: InputItems
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Integer | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_logprobs: Integer | None = None
    text: TextConfig | None = None
    reasoning: ResponseReasoning | None = None
    tools: (
        Annotated[
            list[FunctionTool],
            Field(max_length=128, fail_fast=True),
            only_kinds("a tool", "function"),
        ]
        | None
    ) = None
    tool_choice: Annotated[
        Annotated[Literal["none", "auto", "required"] | None, Tag("<mode>")]
        | Annotated[NamedFunction, Tag("<named>")]
        | Annotated[AllowedFunctions, Tag("<allowed>")],
        Discriminator(choice_kind),
        BeforeValidator(_choice),
    ] = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None

    # Extensions, named as in chat completions.
    top_k: Integer | None = None
    min_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: dict[Integer, Number] | None = None
    seed: Integer | None = None
    stop: StringOrStrings | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Integer | None = None
    skip_special_tokens: bool | None = None
    include_reasoning: bool | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    timeout: Timeout | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    pagelet: RouterHints | None = None

    # Labels and hints: they change no answer.
    user: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: CacheRetention | None = None
    service_tier: ServiceTier | None = None
    max_tool_calls: Annotated[Integer, Field(ge=1)] | None = None
    """Of calls of built-in tools, which are not here."""

    store: bool | None = None
    """Keeps the response, on a server that keeps any."""
    previous_response_id: str | None = None
    """A response that was kept: `input` goes on from it."""
    truncation: Literal["auto", "disabled"] | None = None
    """"auto" leaves out what is oldest of a conversation that is too long."""
    background: bool | None = None
    """Answers at once, with a response that is still to come. It is kept."""
    conversation: Annotated[Any, unsupported(remedy=_NO_CONVERSATIONS)] = None
    background_options: Annotated[Any, unsupported()] = None
    context_management: Annotated[Any, unsupported([])] = None
    moderation: Annotated[Any, unsupported()] = None
    prompt: Annotated[Any, unsupported()] = None
    prompt_cache_options: Annotated[Any, unsupported()] = None

    @model_validator(mode="after")
    def _consistent(self) -> "ResponseRequest":
        references = [item.id for item in self.input if isinstance(item, ItemReference)]
        if len(references) > MOST_REFERENCES:
            raise invalid(
                "input", f"refers to more than {MOST_REFERENCES} items: send them as such"
            )
        if len(set(references)) < len(references):
            raise invalid("input", "refers to an item twice")
        for wanted in self.include or ():
            if wanted not in _INCLUDABLE:
                listed = ", ".join(map(repr, _INCLUDABLE))
                raise invalid("include", f"has {wanted[:64]!r}; it may have {listed}")
        if self.background and self.store is False:
            raise invalid("background", "needs a response that is stored: leave 'store' out")
        if self.background and self.stream:
            raise invalid("background", "cannot go with 'stream': true here")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "is only allowed when 'stream' is true")
        if self.pagelet is not None:
            self.pagelet.check_one_answer(streams=bool(self.stream))
        if self.pagelet is not None and self.pagelet.resume is not None and self.wants_logprobs:
            raise invalid("pagelet", "cannot resume a response with logprobs")
        return self

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer's text comes with those of its tokens."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
