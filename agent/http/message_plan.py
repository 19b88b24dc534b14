"""What a request asks of its answers' form, thinking and tools, and what enforces it."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pagelet.agent.http.message import MessageReader
from pagelet.agent.reasoning import (
    BEGIN,
    END,
    ReasoningSplitter,
    ThinkingCounter,
    prompt_state,
)
from pagelet.agent.settings import ToolCallParser
from pagelet.agent.tools.forced import ForcedParser
from pagelet.agent.tools.formats import FORMATS, JSON, ToolFormat, detect_format
from pagelet.agent.tools.grammars import Tool, forced_calls
from pagelet.engine.processor import RequestedSampling
from pagelet.engine.structured.json_schema import WHITESPACE, json_schema_grammar
from pagelet.engine.structured.requested import RequestedGrammar
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.protocol.openai.tools import NamedToolChoice
from pagelet.protocol.structured import Thinking
from pagelet.text.prompts import PromptEncoder
from pagelet.text.tokenizer import Tokenizer

_PROMPT_END: Final = 16
"""Tokens of a prompt's end that are looked at for the marks of thinking."""


@dataclasses.dataclass(frozen=True, slots=True)
class MessagePlan:
    """How the answers to one request are read."""

    begun: bool | None
    """Whether answers begin in the midst of thinking; None if they do not think."""
    tool_format: ToolFormat | None
    tool_names: list[str]
    parallel: bool
    shows_reasoning: bool
    token_text: Callable[[int], tuple[str, bytes]]
    forced: Mapping[str, str] | None
    """How answers that must call a function begin, by its name."""

    def count_thinking(self) -> ThinkingCounter | None:
        """For one answer; None if it does not think."""
        return None if self.begun is None else ThinkingCounter(self.begun, self.token_text)

    def make_reader(self, make_id: Callable[[int], str]) -> MessageReader:
        """For one answer."""
        parser = None if self.tool_format is None else self.tool_format.make_parser(self.tool_names)
        if parser is not None and self.forced is not None:
            parser = ForcedParser(parser, self.forced)
        return MessageReader(
            None if self.begun is None else ReasoningSplitter(self.begun),
            parser,
            make_id,
            parallel=self.parallel,
            shows_reasoning=self.shows_reasoning,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Calls:
    """How calls are written, and the Lark grammar that enforces it, if anything must be."""

    tool_format: ToolFormat | None = None
    lark: str | None = None
    forced: Mapping[str, str] | None = None
    """See `MessagePlan`."""


class MessageForms:
    """What a model's chat template says of its answers. One for a server."""

    def __init__(self, prompts: PromptEncoder, tool_call_parser: ToolCallParser) -> None:
        self._tokenizer = prompts.tokenizer
        template = None if prompts.chat_template is None else prompts.chat_template.source
        self._thinks = template is not None and BEGIN in template and END in template
        self._takes_tools = tool_call_parser != "none"
        self._tool_format: ToolFormat | None = None
        if tool_call_parser == "auto":
            self._tool_format = detect_format(template)
        elif tool_call_parser != "none":
            self._tool_format = FORMATS[tool_call_parser]

    @property
    def bounds_thinking(self) -> bool:
        """Whether answers think between two tokens of the vocabulary, so that they can be told to
        stop."""
        return self._thinks and self._thinking_tokens(False) is not None

    def plan(
        self, body: ChatCompletionRequest, prompt: list[int], sampling: RequestedSampling
    ) -> MessagePlan | None:
        """Completes `sampling` by what the answers' form needs. None if answers are all content.

        Raises `InvalidRequest` for tools that cannot be served.
        """
        begun = self._thinking(prompt)
        budgets = (body.thinking_budget, body.thinking_token_budget)
        budget = min((limit for limit in budgets if limit is not None), default=None)
        if budget is not None and not self.bounds_thinking:
            raise InvalidRequest(
                "'thinking_budget' bounds nothing: this model's answers do not think between two "
                "tokens of its vocabulary; leave it out",
                "thinking_budget",
            )
        if begun is None and not body.callable_tools:
            return None
        tools = _tools_of(body)
        calls = self._calls(body, tools) if tools else _Calls()
        tool_format, lark = calls.tool_format, calls.lark
        if lark is not None:
            if sampling.structured is not None:
                param = sampling.structured.param
                raise InvalidRequest(
                    f"'{param}' cannot go with tools that must be called, or are strict", param
                )
            sampling.structured = RequestedGrammar(param="tools", lark=lark)
        if begun is not None:
            thinking = self._thinking_tokens(begun, budget)
            if sampling.structured is not None:
                sampling.structured = dataclasses.replace(sampling.structured, thinking=thinking)
            elif budget is not None:
                sampling.thinking = thinking
        if tool_format is not None and sampling.skip_special_tokens is None:
            marks = map(self._tokenizer.token_id, tool_format.special_tokens)
            if not self._tokenizer.special_ids.isdisjoint(marks):
                sampling.skip_special_tokens = False
        return MessagePlan(
            begun,
            tool_format,
            [tool.name for tool in tools],
            parallel=body.parallel_tool_calls is not False,
            shows_reasoning=body.include_reasoning is not False,
            token_text=self._tokenizer.token_text,
            forced=calls.forced,
        )

    def _thinking(self, prompt: list[int]) -> bool | None:
        """Whether the prompt ends in thinking; None if the answer will not think."""
        if not self._thinks:
            return None
        return prompt_state(self._tokenizer.decode(prompt[-_PROMPT_END:], False))

    def _thinking_tokens(self, begun: bool, budget: int | None = None) -> Thinking | None:
        begin, end = self._tokenizer.token_id(BEGIN), self._tokenizer.token_id(END)
        return None if begin is None or end is None else Thinking(begin, end, begun, budget)

    def _calls(self, body: ChatCompletionRequest, tools: list[Tool]) -> _Calls:
        if not self._takes_tools:
            raise InvalidRequest("this server does not take tools", "tools")
        choice = body.tool_choice
        if choice == "required" or isinstance(choice, NamedToolChoice):
            if isinstance(choice, NamedToolChoice):
                tools = [tool for tool in tools if tool.name == choice.function.name]
            tool_format = self._tool_format or JSON
            if tool_format.spelling is None:
                tool_format = JSON
            spelling = tool_format.spelling
            assert spelling is not None
            lark = forced_calls(
                spelling,
                tools,
                _literals(self._tokenizer, tool_format),
                WHITESPACE,
                parallel=choice == "required" and body.parallel_tool_calls is not False,
            )
            return _Calls(
                tool_format, lark, {tool.name: spelling.beginning(tool.name) for tool in tools}
            )
        if self._tool_format is None:
            raise InvalidRequest(
                "the model's chat template teaches no known way to call tools: ask for "
                "'tool_choice': 'required', or start the server with --tool-call-parser",
                "tools",
            )
        if not any(tool.strict for tool in tools):
            return _Calls(self._tool_format)
        literal = _literals(self._tokenizer, self._tool_format)
        return _Calls(self._tool_format, self._tool_format.strict(tools, literal, WHITESPACE))


def _tools_of(body: ChatCompletionRequest) -> list[Tool]:
    """The tools that may be called, with schemas that can be enforced where they must be."""
    forced = body.tool_choice not in (None, "auto")
    tools = []
    for number, tool in enumerate(body.callable_tools):
        function = tool.function
        parameters: dict[str, Any] | None = None
        if function.parameters is not None and (forced or function.strict):
            param = f"tools[{number}].function.parameters"
            grammar = json_schema_grammar(function.parameters, param)
            if grammar.backend != "llguidance":
                raise InvalidRequest(f"{param}: its keywords are not supported in a tool", param)
            parameters = json.loads(grammar.source)
        tools.append(Tool(function.name, parameters, bool(function.strict)))
    return tools


def _literals(tokenizer: Tokenizer, tool_format: ToolFormat) -> Callable[[str], str]:
    """Spells fixed text in Lark; marks that are special tokens by their ids."""
    special = {
        mark: token_id
        for mark in tool_format.special_tokens
        if (token_id := tokenizer.token_id(mark)) in tokenizer.special_ids
    }

    def literal(text: str) -> str:
        for mark, token_id in special.items():
            before, found, after = text.partition(mark)
            if found:
                around = [literal(part) if part else "" for part in (before, after)]
                return f"{around[0]} <[{token_id}]> {around[1]}"
        return json.dumps(text, ensure_ascii=False)

    return literal
