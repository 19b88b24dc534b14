"""From what a caller asks to what the engine core gets: all validation happens here.

The engine core trusts its requests, so whatever could break it is refused with `InvalidRequest`,
whose message says what to change.
"""

import hashlib
import math
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.sampling_request import RequestedSampling, SamplingBuilder
from pagelet.engine.source import ModelFiles
from pagelet.protocol.config import ModelOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.errors import InvalidRequest
from pagelet.text.chat_template import ChatTemplate, Message
from pagelet.text.tokenizer import Tokenizer, check_unicode

__all__ = ["Processor", "RequestedSampling"]

MAX_CACHE_SALT_CHARACTERS: Final = 256
_PRIORITY: Final = (-(2**31), 2**31 - 1)
_SEED_BITS: Final = 63
_END_MARK: Final = "<|pagelet: end of the message|>"


class Processor:
    """Checks requests against one model's vocabulary and limits.

    Raises ConfigurationError or ModelSourceError if the model's own chat template or sampling
    defaults cannot be used.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        max_model_len: int,
        files: ModelFiles,
        options: ModelOptions,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._model_name = files.name
        self._num_token_ids = min(config.vocab_size, tokenizer.max_token_id + 1)
        own_eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self._eos_token_ids = [
            token_id
            for token_id in dict.fromkeys((*config.eos_token_ids, *own_eos))
            if 0 <= token_id < config.vocab_size
        ]
        try:
            self._sampling = SamplingBuilder(
                config.generation_defaults, self._num_token_ids, self.check_token_ids
            )
        except InvalidRequest as error:
            raise ConfigurationError(
                f"generation_config.json of {files.name}: {error}; correct the file"
            ) from error
        source = _template_source(tokenizer, options.chat_template)
        self._chat_template = (
            None if source is None else ChatTemplate(source, tokenizer.special_tokens)
        )

    @property
    def default_sampling(self) -> dict[str, object]:
        """Sampling parameters where a request gives none. `max_tokens` is not among them: its
        default is what the prompt leaves of the context length."""
        return dict(self._sampling.defaults)

    def process(
        self,
        prompt_token_ids: Sequence[int],
        sampling: RequestedSampling,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        arrival_time: float = 0.0,
    ) -> list[EngineCoreRequest]:
        """One engine request for each of the `n` answers, their `request_id`s still to be given.

        The first answer has the seed that was asked for, and the others seeds that follow from it;
        without one, each gets fresh entropy. Raises InvalidRequest.
        """
        prompt = list(prompt_token_ids)
        room = self._check_prompt(prompt, sampling.max_tokens)
        params = self._sampling.build(sampling, room)
        if not _PRIORITY[0] <= priority <= _PRIORITY[1]:
            raise InvalidRequest("priority must fit in 32 bits (signed)", "priority")
        if cache_salt is not None:
            _check_cache_salt(cache_salt)
        return [
            EngineCoreRequest(
                request_id=0,
                external_id=request_id,
                prompt_token_ids=prompt,
                params=msgspec.structs.replace(params, n=1, seed=_child_seed(params.seed, index)),
                eos_token_ids=self._eos_token_ids,
                arrival_time=arrival_time,
                priority=priority,
                cache_salt=cache_salt,
            )
            for index in range(params.n)
        ]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt.

        Raises InvalidRequest for a text that is too long to fit, however it is cut into tokens:
        megabytes of it would take the tokenizer minutes and gigabytes, only to be refused.
        """
        at_least = math.ceil(len(text) / self._tokenizer.most_characters)
        if at_least > self._max_model_len:
            raise InvalidRequest(
                f"the prompt's {len(text)} characters are at least {at_least} tokens, but this "
                f"model's context length is {self._max_model_len}",
                "prompt",
                "context_length_exceeded",
            )
        return self._tokenizer.encode(text, add_special_tokens)

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """The prompt of a conversation; encode it without adding special tokens, as they are in it.

        With `continue_final_message` the prompt ends with the last message's text, so that the
        answer goes on from there. Raises InvalidRequest if the template refuses the conversation,
        or there is none.
        """
        if self._chat_template is None:
            raise InvalidRequest(
                f"model {self._model_name!r} has no chat template: use /v1/completions, or start "
                "the server with --chat-template FILE"
            )
        if not messages:
            raise InvalidRequest("messages must not be empty", "messages")
        if not continue_final_message:
            return self._chat_template.render(
                messages, tools, add_generation_prompt, **template_kwargs
            )
        marked = [*messages[:-1], _with_end_marked(messages[-1])]
        text = self._chat_template.render(marked, tools, False, **template_kwargs)
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
        missing = self._tokenizer.missing_ids
        in_range = min(token_ids) >= 0 and max(token_ids) < self._num_token_ids
        if in_range and missing.isdisjoint(token_ids):
            return
        wrong = next(
            token_id
            for token_id in token_ids
            if not 0 <= token_id < self._num_token_ids or token_id in missing
        )
        raise InvalidRequest(
            f"{param}: token id {wrong} is not in the vocabulary of {self._num_token_ids} tokens",
            param,
        )

    def _check_prompt(self, prompt: list[int], max_tokens: int | None) -> int:
        """How many tokens may follow the prompt."""
        if not prompt:
            raise InvalidRequest("the prompt is empty: give at least one token", "prompt")
        room = self._max_model_len - len(prompt)
        if room < 1:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens, but this model's context length is "
                f"{self._max_model_len} and at least one token must be left for the answer: "
                f"shorten it by {1 - room}",
                "prompt",
                "context_length_exceeded",
            )
        if max_tokens is not None and max_tokens > room:
            raise InvalidRequest(
                f"the prompt's {len(prompt)} tokens and max_tokens {max_tokens} make "
                f"{len(prompt) + max_tokens}, but this model's context length is "
                f"{self._max_model_len}: set max_tokens to at most {room}",
                "max_tokens",
                "context_length_exceeded",
            )
        self.check_token_ids("prompt", prompt)
        return room


def _check_cache_salt(cache_salt: str) -> None:
    check_unicode("cache_salt", cache_salt)
    if not 1 <= len(cache_salt) <= MAX_CACHE_SALT_CHARACTERS:
        raise InvalidRequest(
            f"cache_salt must have 1 to {MAX_CACHE_SALT_CHARACTERS} characters, "
            f"got {len(cache_salt)}",
            "cache_salt",
        )


def _with_end_marked(message: Message) -> Message:
    """The message with a mark where its text ends: what follows it is the template's."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": content + _END_MARK}
    *before, last = content
    return {**message, "content": [*before, {**last, "text": last.get("text", "") + _END_MARK}]}


def _template_source(tokenizer: Tokenizer, path: str | None) -> str | None:
    if path is None:
        return tokenizer.chat_template
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"chat template {path}: cannot be read: {error}") from error


def _child_seed(seed: int | None, index: int) -> int:
    if seed is None:
        return secrets.randbits(_SEED_BITS)
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)
