"""From a request of Anthropic's API to the chat request that asks the same."""

import json
from typing import Any, Final

from pydantic import ValidationError

from pagelet.agent.http.conversation import finding
from pagelet.protocol.anthropic.blocks import TextBlock, ThinkingBlock
from pagelet.protocol.anthropic.requests import (
    AssistantTurn,
    CountTokensRequest,
    MessagesRequest,
    Tool,
    ToolChoice,
    UserMessage,
)
from pagelet.protocol.openai.chat import ChatCompletionRequest, Message, TextPart
from pagelet.protocol.openai.structured import JsonSchemaFormat, ResponseFormat
from pagelet.protocol.openai.tools import (
    FunctionCallInput,
    FunctionDefinition,
    FunctionName,
    NamedToolChoice,
    ToolCallInput,
    ToolDefinition,
)

NAMES: Final = {
    "prompt": "messages",
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "continue_final_message": "messages",
    ".function.parameters": ".input_schema",
}
"""From fields of chat requests to those of Anthropic's."""
_SAME_NAME: Final = (
    *("stream", "max_tokens", "temperature", "top_k", "top_p", "seed", "priority"),
    *("cache_salt", "timeout", "pagelet"),
)


def chat_request(body: CountTokensRequest) -> ChatCompletionRequest:
    """Raises `InvalidRequest` for what chat requests cannot say."""
    choice = body.tool_choice
    fields: dict[str, Any] = {}
    if isinstance(body, MessagesRequest):
        fields = {name: getattr(body, name) for name in _SAME_NAME}
        fields["stop"] = body.stop_sequences
    if body.output_config is not None and body.output_config.format is not None:
        schema = JsonSchemaFormat(name="answer", schema=body.output_config.format.schema_)
        fields["response_format"] = ResponseFormat(type="json_schema", json_schema=schema)
    try:
        return ChatCompletionRequest(
            model=body.model,
            messages=_messages(body),
            tools=[_tool(tool) for tool in body.tools or ()],
            tool_choice=None if choice is None else _choice(choice),
            parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
            include_reasoning=body.thinking is None or body.thinking.type != "disabled",
            chat_template_kwargs=_template_kwargs(body),
            continue_final_message=True if body.continues else None,
            reasoning_effort=None if body.output_config is None else body.output_config.effort,
            **fields,
        )
    except ValidationError as error:
        raise finding(error, NAMES) from None


def _template_kwargs(body: CountTokensRequest) -> dict[str, Any] | None:
    """`enable_thinking` is what the templates of thinking models go by."""
    if body.thinking is None:
        return body.chat_template_kwargs
    thinks = body.thinking.type != "disabled"
    return {"enable_thinking": thinks} | (body.chat_template_kwargs or {})


def _tool(tool: Tool) -> ToolDefinition:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return ToolDefinition(type="function", function=function)


def _choice(choice: ToolChoice) -> Any:
    if choice.name is not None:
        return NamedToolChoice(type="function", function=FunctionName(name=choice.name))
    return "required" if choice.type == "any" else choice.type


def _messages(body: CountTokensRequest) -> list[Message]:
    messages = []
    if body.system:
        messages.append(Message(role="system", content=_content(body.system)))
    for turn in body.messages:
        if isinstance(turn, UserMessage):
            messages += _user_messages(turn)
        else:
            messages.append(_assistant_message(turn))
    return messages


def _user_messages(turn: UserMessage) -> list[Message]:
    """In their order: results of calls are messages of their own."""
    messages: list[Message] = []
    for block in turn.content:
        if not isinstance(block, TextBlock):
            content = _content(block.content or ())
            messages.append(Message(role="tool", tool_call_id=block.tool_use_id, content=content))
            continue
        part = TextPart(type="text", text=block.text)
        if messages and messages[-1].role == "user" and messages[-1].content is not None:
            messages[-1].content.append(part)
        else:
            messages.append(Message(role="user", content=[part]))
    return messages


def _assistant_message(turn: AssistantTurn) -> Message:
    content, thoughts, calls = list[TextPart](), list[str](), list[ToolCallInput]()
    for block in turn.content:
        if isinstance(block, TextBlock):
            content.append(TextPart(type="text", text=block.text))
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        else:
            function = FunctionCallInput(name=block.name, arguments=json.dumps(block.input))
            calls.append(ToolCallInput(id=block.id, function=function))
    return Message(
        role="assistant",
        content=content or None,
        reasoning_content="".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _content(blocks: Any) -> list[TextPart]:
    return [TextPart(type="text", text=block.text) for block in blocks]
