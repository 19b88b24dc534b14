"""Chat completions: `POST /v1/chat/completions`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from pagelet.protocol.kinds import refusals_as_text
from pagelet.protocol.openai.common import PromptLogprobs, Usage
from pagelet.protocol.openai.effort import Effort, effort_kwargs
from pagelet.protocol.openai.fields import (
    Integer,
    RequestBody,
    ResponseBody,
    invalid,
    one_of,
    unsupported,
)
from pagelet.protocol.openai.generation import GenerationRequest
from pagelet.protocol.openai.tools import (
    AllowedTools,
    NamedToolChoice,
    ToolCall,
    ToolCallInput,
    ToolChoice,
    ToolDefinition,
    Tools,
)


class TextPart(RequestBody):
    """A part of a message's content."""

    type: Literal["text"]
    text: str
    cache_control: Any = Field(default=None, exclude=True)
    """A hint of Anthropic's, which gateways pass on: every prompt's prefix is cached anyway."""


def _parts(value: object) -> object:
    """Content as a list of text parts; a part of any other kind is an error that names it."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        for part in value:
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise PydanticCustomError(
                    "unsupported_content",
                    "{message}",
                    {"message": f"has a part of type {kind[:64]!r}; only 'text' is supported"},
                )
    return value


Content = Annotated[
    list[TextPart],
    Field(fail_fast=True),
    BeforeValidator(_parts),
    refusals_as_text("text"),
    one_of(str, list),
]


class Message(RequestBody):
    """One turn. Fields that clients copy from an answer into the history are known here."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCallInput] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """Its name in newer answers of vLLM's."""
    refusal: str | None = None
    annotations: Annotated[Any, unsupported([])] = None
    audio: Annotated[Any, unsupported()] = None
    function_call: Annotated[Any, unsupported()] = None

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.refusal is not None and not self.content:
            self.content = [TextPart(type="text", text=self.refusal)]
        if self.reasoning_content is None:
            self.reasoning_content = self.reasoning
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError(
                "invalid_value",
                "{message}",
                {"message": f"is a {self.role} message and needs content"},
            )
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError(
                "invalid_value", "{message}", {"message": "has 'tool_calls' but is no assistant's"}
            )
        return self

    def for_template(self) -> dict[str, Any]:
        """As chat templates take it; `developer` goes under its older name `system`, the one that
        templates know."""
        parts = self.content or []
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": "".join(part.text for part in parts)
            if len(parts) < 2
            else [part.model_dump() for part in parts],
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [
                call.model_dump(exclude_none=True, exclude={"index"}) for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        return message


class Prediction(RequestBody):
    """What much of the answer will probably be."""

    type: Literal["content"]
    content: Content


Messages = Annotated[list[Message], Field(min_length=1, max_length=8192, fail_fast=True)]
"""Bounded, as a body full of empty messages would hold the server up for seconds."""


class ChatCompletionRequest(GenerationRequest):
    """`max_completion_tokens`, or its older name `max_tokens`, defaults to what is left of the
    model's context."""

    messages: Messages
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    """Default: auto if there are tools."""
    parallel_tool_calls: bool | None = None
    thinking_budget: Annotated[Integer, Field(ge=0)] | None = None
    """Most tokens to think; then the answer must come."""
    thinking_token_budget: Annotated[Integer, Field(ge=0)] | None = None
    """vLLM's name of it; the smaller counts."""
    include_reasoning: bool | None = None
    """False leaves `reasoning_content` out."""

    reasoning_effort: Effort | None = None
    """For the template, as far as it knows of it."""
    documents: list[dict[str, str]] | None = None
    """For the template, likewise."""
    prediction: Prediction | None = None
    """A hint, as labels are: it changes no answer."""

    functions: Annotated[Any, unsupported([])] = None
    function_call: Annotated[Any, unsupported("none", "auto")] = None
    modalities: Annotated[Any, unsupported(["text"])] = None
    audio: Annotated[Any, unsupported()] = None
    web_search_options: Annotated[Any, unsupported()] = None
    moderation: Annotated[Any, unsupported()] = None
    prompt_cache_options: Annotated[Any, unsupported()] = None
    verbosity: Annotated[Any, unsupported("medium")] = None
    echo: Annotated[Any, unsupported(False)] = None
    chat_template: Annotated[Any, unsupported(remedy="the server's template is used")] = None

    @model_validator(mode="after")
    def _consistent(self) -> "ChatCompletionRequest":
        self.check_stream()
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "is only allowed when 'logprobs' is true")
        if (
            self.max_tokens is not None
            and self.max_completion_tokens is not None
            and self.max_tokens != self.max_completion_tokens
        ):
            raise invalid("max_tokens", "differs from 'max_completion_tokens'; give only one")
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise invalid(
                    "continue_final_message", "cannot go with 'add_generation_prompt': true"
                )
            if self.messages[-1].role != "assistant" or not self.messages[-1].content:
                raise invalid(
                    "continue_final_message", "needs an assistant message with content at the end"
                )
        self._check_tools()
        self.template_options()
        return self

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise invalid("tools", f"has the function '{twice}' twice")
        choice = self.tool_choice
        if isinstance(choice, AllowedTools):
            allowed = {tool.function.name for tool in choice.allowed_tools.tools}
            for name in allowed.difference(names):
                raise invalid("tool_choice", f"allows {name[:64]!r}, which is no tool")
            # What is left of it is a plain choice among fewer tools.
            self.tools = [tool for tool in self.tools or () if tool.function.name in allowed]
            self.tool_choice = choice = choice.allowed_tools.mode
        if choice not in (None, "none", "auto") and not names:
            raise invalid("tool_choice", "needs 'tools'")
        if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
            raise invalid("tool_choice", f"names {choice.function.name[:64]!r}, which is no tool")

    @property
    def callable_tools(self) -> list[ToolDefinition]:
        """The tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    def template_options(self) -> dict[str, Any]:
        """What the chat template is called with, besides the messages."""
        options = effort_kwargs(self.reasoning_effort) | template_options(
            self.chat_template_kwargs, self.add_generation_prompt, self.continue_final_message
        )
        if self.documents:
            options["documents"] = self.documents
        if self.callable_tools:
            options["tools"] = [tool.for_template() for tool in self.callable_tools]
        return options


_OWN_FIELDS = frozenset(
    (
        *("messages", "tools", "add_generation_prompt", "continue_final_message", "self"),
        "add_special_tokens",
    )
)


def template_options(
    kwargs: dict[str, Any] | None,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
) -> dict[str, Any]:
    """Keyword arguments for rendering a chat: the prompt for an answer is added unless the last
    message is to be continued.

    Raises if `chat_template_kwargs` sets what has a field of its own."""
    taken = sorted(_OWN_FIELDS.intersection(kwargs or {}))
    if taken:
        raise invalid("chat_template_kwargs", f"cannot set {taken[0]!r}; it has its own field")
    options = dict(kwargs or {})
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    options["add_generation_prompt"] = add_generation_prompt
    if continue_final_message:
        options["continue_final_message"] = True
    return options


class TopLogprob(ResponseBody):
    """A likely token at a position. `bytes` is exact where `token` is part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The token at a position."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(ResponseBody):
    """Logprobs of an answer's tokens: raw, as the model gave them before sampling settings."""

    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(ResponseBody):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """None if it only calls tools."""
    refusal: None = None
    annotations: list[Any] = Field(default_factory=list)
    reasoning_content: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the model thought before (an extension, as in DeepSeek's API and vLLM)."""
    tool_calls: list[ToolCall] = Field(default_factory=list, exclude_if=lambda value: not value)


class ChatChoice(ResponseBody):
    """One of `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatCompletion(ResponseBody):
    """The whole answer to a request that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    service_tier: Literal["default"] = "default"
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
