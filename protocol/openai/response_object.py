"""Responses, as `POST /v1/responses` answers."""

from typing import Any, Literal

from pydantic import Field

from pagelet.protocol.openai.chat import TokenLogprob
from pagelet.protocol.openai.fields import ResponseBody

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]

ErrorCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
"""Those of OpenAI's that fit what happens here: its clients know no others."""


class OutputText(ResponseBody):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[TokenLogprob] = Field(default_factory=list)


class OutputMessage(ResponseBody):
    """What the model says."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class OutputCall(ResponseBody):
    """A call that it makes; `arguments` is JSON text as the model wrote it."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningText(ResponseBody):
    """The text of its thinking."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputReasoning(ResponseBody):
    """What the model thought before. All of it, so that there is no summary."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: ItemStatus
    summary: list[Any] = Field(default_factory=list)
    content: list[ReasoningText]


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputTokensDetails(ResponseBody):
    """`cached_tokens` of the input were found in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(ResponseBody):
    """`reasoning_tokens` of the output were thinking."""

    reasoning_tokens: int


class ResponseUsage(ResponseBody):
    """What was read and written, in tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(ResponseBody):
    """Why a response failed; `pagelet_code` (an extension) is the code of other APIs' errors."""

    code: ErrorCode
    message: str
    pagelet_code: str | None


class IncompleteDetails(ResponseBody):
    """Why a response is not complete; no reason is that a stop string cut a call off."""

    reason: Literal["max_output_tokens"] | None


class ResponseObject(ResponseBody):
    """A response, as far as it has come, with the settings of its request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    prompt_cache_key: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None
