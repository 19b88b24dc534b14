"""Requests of Anthropic's API: `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from pagelet.protocol.anthropic.blocks import AssistantBlocks, TextBlocks, UserBlocks
from pagelet.protocol.kinds import only_kinds
from pagelet.protocol.openai.effort import Effort
from pagelet.protocol.openai.fields import (
    Integer,
    Number,
    RequestBody,
    Timeout,
    invalid,
    unsupported,
)
from pagelet.protocol.openai.routing import RouterHints
from pagelet.protocol.openai.tools import Name

_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


class UserMessage(RequestBody):
    """A turn of the user's, with results of calls."""

    role: Literal["user"]
    content: UserBlocks


class AssistantTurn(RequestBody):
    """A turn of the model's."""

    role: Literal["assistant"]
    content: AssistantBlocks


def _role(value: Any) -> str:
    return (
        "<assistant>" if isinstance(value, dict) and value.get("role") == "assistant" else "<user>"
    )


Turn = Annotated[
    Annotated[UserMessage, Tag("<user>")] | Annotated[AssistantTurn, Tag("<assistant>")],
    Discriminator(_role),
]


class Tool(RequestBody):
    """A tool of the client's; `input_schema` is the JSON schema of its input."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: bool | None = None
    defer_loading: Annotated[Any, unsupported(False)] = None
    input_examples: Annotated[Any, unsupported([])] = None
    allowed_callers: Annotated[Any, unsupported(["direct"])] = None


class ToolChoice(RequestBody):
    """Which tools must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ToolChoice":
        if (self.type == "tool") != (self.name is not None):
            raise invalid("tool_choice.name", "goes with the type 'tool'")
        return self


class ThinkingConfig(RequestBody):
    """Whether the model is to think, and for how many tokens at most."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[Integer, Field(ge=0)] | None = None
    display: Annotated[Any, unsupported("summarized")] = None

    @model_validator(mode="after")
    def _consistent(self) -> "ThinkingConfig":
        if self.budget_tokens is not None and self.type != "enabled":
            raise invalid("thinking.budget_tokens", "goes with the type 'enabled'")
        return self


class OutputFormat(RequestBody):
    """A schema that the answer must match."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestBody):
    """How the answer is to look."""

    format: OutputFormat | None = None
    effort: Effort | None = None
    """For the template, as far as it knows of it."""


class Metadata(RequestBody):
    """A label: it changes no answer."""

    user_id: str | None = None


class CountTokensRequest(RequestBody):
    """A conversation."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1, max_length=8192, fail_fast=True)]
    system: TextBlocks | None = None
    tools: (
        Annotated[list[Tool], Field(max_length=128, fail_fast=True), only_kinds("a tool", "custom")]
        | None
    ) = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    """An extension, as in chat completions."""
    speed: Annotated[Any, unsupported("standard")] = None
    user_profile_id: Annotated[Any, unsupported()] = None
    workspace_id: Annotated[Any, unsupported()] = None

    @model_validator(mode="after")
    def _continues_text(self) -> "CountTokensRequest":
        last = self.messages[-1]
        if isinstance(last, AssistantTurn) and not (
            any(block.type == "text" and block.text for block in last.content)
            and all(block.type == "text" for block in last.content)
        ):
            raise invalid("messages", "ends in a turn of the assistant's that is more than text")
        return self

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the last message."""
        return self.messages[-1].role == "assistant"


class MessagesRequest(CountTokensRequest):
    """A conversation to answer."""

    max_tokens: Integer
    stream: bool | None = None
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    temperature: Number | None = None
    top_k: Integer | None = None
    top_p: Number | None = None
    metadata: Metadata | None = None
    service_tier: Annotated[Any, unsupported("auto", "standard_only")] = None
    container: Annotated[Any, unsupported()] = None
    context_management: Annotated[Any, unsupported({}, {"edits": []}, _KEEPS_ALL)] = None
    diagnostics: Annotated[Any, unsupported()] = None
    inference_geo: Annotated[Any, unsupported()] = None
    mcp_servers: Annotated[Any, unsupported([])] = None

    # Extensions, named as in chat completions.
    seed: Integer | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    timeout: Timeout | None = None
    pagelet: RouterHints | None = None

    @model_validator(mode="after")
    def _resumes_one_answer(self) -> "MessagesRequest":
        if self.pagelet is not None:
            self.pagelet.check_one_answer(streams=bool(self.stream))
        return self
