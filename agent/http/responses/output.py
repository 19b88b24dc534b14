"""Responses and their items, made of what was read of an answer."""

import hashlib
import time
from collections.abc import Mapping
from typing import Any, Final

from pagelet.agent.http.items import Item, ItemReader
from pagelet.agent.http.logprobs import chat_logprobs
from pagelet.protocol.openai.common import Usage
from pagelet.protocol.openai.errors import ApiError
from pagelet.protocol.openai.response_object import (
    ErrorCode,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    ReasoningText,
    ResponseError,
    ResponseObject,
    ResponseStatus,
    ResponseUsage,
)
from pagelet.protocol.openai.responses import AllowedFunctions, NamedFunction, ResponseRequest

_PREFIXES: Final = {"reasoning": "rs", "text": "msg", "call": "fc"}
_ERROR_CODES: Final[Mapping[int, ErrorCode]] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""OpenAI's, by status."""


class ResponseWriter:
    """Writes the response to one request, as far as it has come."""

    def __init__(
        self,
        body: ResponseRequest,
        response_id: str,
        reader: ItemReader,
        created: int,
        defaults: Mapping[str, Any],
        *,
        stored: bool = False,
    ) -> None:
        """`created` is when it began, in seconds since 1970; `defaults` are the sampling parameters
        that it has where its request gives none; `stored` if it will be kept."""
        self._body = body
        self._id = response_id
        self._reader = reader
        self._created = created
        self._defaults = defaults
        self._stored = stored

    def item_id(self, item: Item) -> str:
        """Of an item of this response."""
        digest = hashlib.sha256(f"{self._id}/{item.index}".encode()).hexdigest()
        return f"{_PREFIXES[item.kind]}_{digest[:24]}"

    def begun_item(self, item: Item) -> OutputItem:
        """An item of which nothing has come yet."""
        written = self.item(item.empty(), "in_progress")
        if not isinstance(written, OutputCall):
            written.content.clear()
        return written

    def item(self, item: Item, status: ItemStatus) -> OutputItem:
        """An item with all that has come of it."""
        if item.kind == "call":
            return OutputCall(
                id=self.item_id(item),
                status=status,
                call_id=item.call_id,
                name=item.name,
                arguments=item.text,
            )
        if item.kind == "reasoning":
            return OutputReasoning(
                id=self.item_id(item), status=status, content=[ReasoningText(text=item.text)]
            )
        logprobs = chat_logprobs(item.logprobs).content if item.logprobs else []
        return OutputMessage(
            id=self.item_id(item),
            status=status,
            content=[OutputText(text=item.text, logprobs=logprobs)],
        )

    def begun(self) -> ResponseObject:
        """The response before anything of it has come."""
        return self._response("in_progress", [])

    def failed(self, error: ApiError) -> ResponseObject:
        """The response as it broke off."""
        response = self._response("failed", self._items(cut=True))
        response.error = ResponseError(
            code=_ERROR_CODES.get(error.status, "server_error"),
            message=error.detail.message,
            pagelet_code=error.detail.code,
        )
        return response

    def cancelled(self) -> ResponseObject:
        """The response as it was when nobody wanted it any more."""
        return self._response("cancelled", self._items(cut=True))

    def whole(self, usage: Usage) -> ResponseObject:
        """The response once its answer has ended."""
        cut = self._reader.breaks_off
        response = self._response("incomplete" if cut else "completed", self._items(cut))
        if cut:
            response.incomplete_details = IncompleteDetails(
                reason="max_output_tokens" if self._reader.cut else None
            )
        else:
            response.completed_at = int(time.time())
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=usage.prompt_tokens_details.cached_tokens
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=usage.completion_tokens_details.reasoning_tokens
            ),
            total_tokens=usage.total_tokens,
        )
        return response

    def _items(self, cut: bool) -> list[OutputItem]:
        items = self._reader.items
        return [
            self.item(item, "incomplete" if cut and item is items[-1] else "completed")
            for item in items
        ]

    def _response(
        self,
        status: ResponseStatus,
        output: list[OutputItem],
    ) -> ResponseObject:
        body = self._body
        return ResponseObject(
            id=self._id,
            created_at=self._created,
            status=status,
            background=bool(body.background),
            previous_response_id=body.previous_response_id,
            store=self._stored,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            reasoning={
                "effort": None if body.reasoning is None else body.reasoning.effort,
                "summary": None,
            },
            metadata=body.metadata or {},
            model=body.model,
            output=output,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            safety_identifier=body.safety_identifier,
            prompt_cache_key=body.prompt_cache_key,
            temperature=self._in_force("temperature", body.temperature),
            text=self._text(),
            tool_choice=self._tool_choice(),
            tools=[
                tool.model_dump(include={"type", "name", "description", "parameters", "strict"})
                for tool in body.tools or ()
            ],
            top_logprobs=body.top_logprobs or 0,
            truncation=body.truncation or "disabled",
            top_p=self._in_force("top_p", body.top_p),
            user=body.user,
        )

    def _in_force(self, name: str, asked: float | None) -> float | None:
        return self._defaults[name] if asked is None else asked

    def _text(self) -> dict[str, Any]:
        text = self._body.text
        if text is None or text.format is None:
            return {"format": {"type": "text"}}
        return {"format": text.format.model_dump(by_alias=True, exclude_none=True)}

    def _tool_choice(self) -> str | dict[str, Any]:
        choice = self._body.tool_choice
        if isinstance(choice, NamedFunction | AllowedFunctions):
            return choice.model_dump()
        return choice or "auto"
