"""Text to token ids and back: `POST /tokenize` and `POST /detokenize` (shapes as in vLLM)."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from pagelet.protocol.openai.chat import Messages, template_options
from pagelet.protocol.openai.fields import RequestBody, ResponseBody, TokenId, invalid
from pagelet.protocol.openai.tools import Tools

_OF_THE_TEMPLATE = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenizeRequest(RequestBody):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    """What the tokenizer puts around a text, such as BOS. Default: true for a prompt, false for a
    chat, whose template spells its special tokens."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of(self) -> "TokenizeRequest":
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt", "or 'messages' must be given, and not both")
        if self.messages is None:
            for name in (*_OF_THE_TEMPLATE, "tools"):
                if getattr(self, name) is not None:
                    raise invalid(name, "is only allowed with 'messages'")
        self.template_options()
        return self

    def template_options(self) -> dict[str, Any]:
        """What the chat template is called with, besides the messages."""
        options = template_options(
            self.chat_template_kwargs, self.add_generation_prompt, self.continue_final_message
        )
        if self.tools:
            options["tools"] = [tool.for_template() for tool in self.tools]
        return options


class TokenizeResponse(ResponseBody):
    """Token ids; `token_strs` only if asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(RequestBody):
    """Token ids to decode, special tokens included."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class DetokenizeResponse(ResponseBody):
    """The text."""

    prompt: str
