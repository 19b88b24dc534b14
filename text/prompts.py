"""From what a client sends to the token ids of its prompt, the same in a replica and a router."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from pagelet.protocol.errors import ContextLengthExceeded, InvalidRequest
from pagelet.text.chat_template import ChatTemplate, Message
from pagelet.text.tokenizer import Tokenizer

_END_MARK: Final = "<|pagelet: end of the message|>"


class PromptEncoder:
    """A model's tokenizer and chat template, within the model's limits.

    `num_token_ids`: ids that the model takes, from 0 on. `max_model_len`: its context length.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        *,
        model_name: str,
        num_token_ids: int,
        max_model_len: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.num_token_ids = num_token_ids
        self.max_model_len = max_model_len
        self.model_name = model_name

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt. Raises InvalidRequest, also as `check_length` does."""
        self.check_length(text)
        return self.tokenizer.encode(text, add_special_tokens)

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        """`encode` of each text, in parallel."""
        for text in texts:
            self.check_length(text)
        return self.tokenizer.encode_batch(texts, add_special_tokens)

    def check_length(self, text: str) -> None:
        """Raises InvalidRequest for a text that is too long to fit, however it is cut into tokens:
        megabytes of it would take the tokenizer minutes and gigabytes, only to be refused."""
        at_least = math.ceil(len(text) / self.tokenizer.most_characters)
        if at_least > self.max_model_len:
            raise ContextLengthExceeded(
                f"the prompt's {len(text)} characters are at least {at_least}: shorten it by at "
                f"least {at_least - self.max_model_len}",
                "prompt",
                context_length=self.max_model_len,
                prompt_tokens=at_least,
            )

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        add_special_tokens: bool = False,
        **template_kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation, as `render_chat` spells it. With `add_special_tokens` the
        tokenizer puts around it what it puts around any text, whatever the template has spelled."""
        text = self.render_chat(messages, tools, add_generation_prompt, **template_kwargs)
        return self.encode(text, add_special_tokens)

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """The prompt of a conversation.

        With `continue_final_message` the prompt ends with the last message's text, so that the
        answer goes on from there. Raises InvalidRequest if the template refuses the conversation,
        or there is none.
        """
        if self.chat_template is None:
            raise InvalidRequest(
                f"model {self.model_name!r} has no chat template: use /v1/completions, or start "
                "the server with --chat-template FILE"
            )
        if not messages:
            raise InvalidRequest("messages must not be empty", "messages")
        if not continue_final_message:
            return self.chat_template.render(
                messages, tools, add_generation_prompt, **template_kwargs
            )
        marked = [*messages[:-1], _with_end_marked(messages[-1])]
        text = self.chat_template.render(marked, tools, False, **template_kwargs)
        if text.count(_END_MARK) != 1:
            raise InvalidRequest(
                "the chat template does not show the last message once and as it is, so it cannot "
                "be continued",
                "continue_final_message",
            )
        return text.partition(_END_MARK)[0]

    def check_token_ids(self, param: str, token_ids: Collection[int]) -> None:
        """Raises InvalidRequest for an id that is no token, also if the model has a row for it."""
        if not token_ids:
            return
        missing = self.tokenizer.missing_ids
        in_range = min(token_ids) >= 0 and max(token_ids) < self.num_token_ids
        if in_range and missing.isdisjoint(token_ids):
            return
        wrong = next(
            token_id
            for token_id in token_ids
            if not 0 <= token_id < self.num_token_ids or token_id in missing
        )
        raise InvalidRequest(
            f"{param}: token id {wrong} is not in the vocabulary of {self.num_token_ids} tokens",
            param,
        )


def _with_end_marked(message: Message) -> Message:
    """The message with a mark where its text ends: what follows it is the template's. One whose
    content is nothing that has an end stays as it is, and the template says what is wrong."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": content + _END_MARK}
    parts = content if isinstance(content, Sequence) else ()
    last = parts[-1] if parts else None
    if not isinstance(last, Mapping) or not isinstance(text := last.get("text", ""), str):
        return message
    return {**message, "content": [*parts[:-1], {**last, "text": text + _END_MARK}]}
