"""From a request for a response to the chat request that asks the same."""

from collections.abc import Sequence
from typing import Final, Literal

from pydantic import ValidationError

from pagelet.agent.http.conversation import finding
from pagelet.agent.http.message_plan import MessagePlan
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import ChatCompletionRequest, Message, TextPart
from pagelet.protocol.openai.response_input import (
    InputCall,
    InputCallOutput,
    InputItem,
    InputMessage,
    InputParts,
)
from pagelet.protocol.openai.responses import (
    AllowedFunctions,
    NamedFunction,
    ResponseRequest,
    TextFormat,
)
from pagelet.protocol.openai.structured import JsonSchemaFormat, ResponseFormat
from pagelet.protocol.openai.tools import (
    AllowedSet,
    AllowedTools,
    FunctionCallInput,
    FunctionDefinition,
    FunctionName,
    NamedToolChoice,
    ToolCallInput,
    ToolDefinition,
)

NAMES: Final = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "response_format": "text.format",
    ".function.parameters": ".parameters",
}
"""From fields of chat requests to those of requests for responses."""
_SAME_NAME: Final = (
    *("model", "stream", "temperature", "top_p", "parallel_tool_calls", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "stop"),
    *("stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens"),
    *("skip_special_tokens", "include_reasoning", "priority", "cache_salt"),
    *("chat_template_kwargs", "timeout", "pagelet"),
)


def chat_request(body: ResponseRequest, items: Sequence[InputItem]) -> ChatCompletionRequest:
    """`items` are those of the input, and before them what it goes on from.

    Raises `InvalidRequest` for what chat requests cannot say.
    """
    asked = body.text.format if body.text is not None else None
    try:
        return ChatCompletionRequest(
            **{name: getattr(body, name) for name in _SAME_NAME},
            messages=_messages(body, items),
            max_completion_tokens=body.max_output_tokens,
            logprobs=body.wants_logprobs or None,
            top_logprobs=body.top_logprobs if body.wants_logprobs else None,
            response_format=None if asked is None else _format(asked),
            tools=[
                ToolDefinition(
                    type="function",
                    function=FunctionDefinition(
                        name=tool.name,
                        description=tool.description,
                        parameters=tool.parameters,
                        strict=tool.strict,
                    ),
                )
                for tool in body.tools or ()
            ],
            tool_choice=_choice(body.tool_choice),
            reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        )
    except ValidationError as error:
        raise finding(error, NAMES) from None


def check_logprobs(body: ResponseRequest, plan: MessagePlan | None) -> None:
    """Raises `InvalidRequest` for logprobs of an answer that `plan` takes apart."""
    if body.wants_logprobs and plan is not None:
        raise InvalidRequest(
            "logprobs are not available for answers that may think or call tools",
            "include",
            "unsupported_parameter",
        )


def _choice(
    choice: Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions | None,
) -> Literal["none", "auto", "required"] | NamedToolChoice | AllowedTools | None:
    if isinstance(choice, NamedFunction):
        return _named(choice)
    if isinstance(choice, AllowedFunctions):
        allowed = AllowedSet(mode=choice.mode, tools=list(map(_named, choice.tools)))
        return AllowedTools(type="allowed_tools", allowed_tools=allowed)
    return choice


def _named(function: NamedFunction) -> NamedToolChoice:
    return NamedToolChoice(type="function", function=FunctionName(name=function.name))


def _format(asked: TextFormat) -> ResponseFormat:
    if asked.type != "json_schema":
        return ResponseFormat(type=asked.type)
    schema = JsonSchemaFormat(name=asked.name or "", schema=asked.schema_, strict=asked.strict)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _messages(body: ResponseRequest, items: Sequence[InputItem]) -> list[Message]:
    messages = []
    if body.instructions is not None:
        messages.append(Message(role="system", content=_content_of_text(body.instructions)))
    for item in items:
        _append(messages, item)
    return messages


def _append(messages: list[Message], item: InputItem) -> None:
    """Adds an item. Thinking, text and calls of the model that follow one another are one turn."""
    last = messages[-1] if messages and messages[-1].role == "assistant" else None
    if isinstance(item, InputMessage) and item.role != "assistant":
        messages.append(Message(role=item.role, content=_content(item.content)))
    elif isinstance(item, InputCallOutput):
        messages.append(
            Message(role="tool", tool_call_id=item.call_id, content=_content(item.output))
        )
    elif isinstance(item, InputMessage):
        if last is None or last.content or last.tool_calls:
            messages.append(last := Message(role="assistant"))
        last.content = _content(item.content)
    elif isinstance(item, InputCall):
        if last is None:
            messages.append(last := Message(role="assistant"))
        function = FunctionCallInput(name=item.name, arguments=item.arguments)
        last.tool_calls = last.tool_calls or []
        last.tool_calls.append(ToolCallInput(id=item.call_id, function=function))
    else:
        if last is None or last.content or last.tool_calls:
            messages.append(last := Message(role="assistant"))
        thought = "".join(part.text for part in item.content or ())
        last.reasoning_content = (last.reasoning_content or "") + thought


def _content(parts: InputParts) -> list[TextPart]:
    return [TextPart(type="text", text=part.text) for part in parts]


def _content_of_text(text: str) -> list[TextPart]:
    return [TextPart(type="text", text=text)]
