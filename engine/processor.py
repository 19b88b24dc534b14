"""From what a caller asks to what the engine core gets: all validation happens here.

The engine core trusts its requests, so whatever could break it is refused with `InvalidRequest`,
whose message says what to change.
"""

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pagelet.engine.errors import ConfigurationError
from pagelet.engine.model_config import ModelConfig
from pagelet.engine.resume import AnswerSoFar
from pagelet.engine.sampling_request import RequestedSampling, SamplingBuilder
from pagelet.engine.source import ModelFiles
from pagelet.protocol.config import ModelOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.errors import ContextLengthExceeded, InvalidRequest
from pagelet.protocol.pooling import PoolingParams
from pagelet.protocol.sampling import SamplingParams
from pagelet.text.chat_template import ChatTemplate
from pagelet.text.prompts import PromptEncoder
from pagelet.text.tokenizer import Tokenizer, check_unicode

__all__ = ["Processor", "RequestedSampling"]

MAX_CACHE_SALT_CHARACTERS: Final = 256
_PRIORITY: Final = (-(2**31), 2**31 - 1)
_SEED_BITS: Final = 63
_ENDPOINTS: Final = {
    "embed": "/v1/embeddings, /v1/score and /v1/rerank",
    "score": "/v1/score and /v1/rerank",
}


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
        source = _template_source(tokenizer, options.chat_template)
        self.prompts = PromptEncoder(
            tokenizer,
            None if source is None else ChatTemplate(source, tokenizer.special_tokens),
            model_name=files.name,
            num_token_ids=min(config.vocab_size, tokenizer.max_token_id + 1),
            max_model_len=max_model_len,
        )
        self.pooling = config.pooling
        self._templated_pairs = options.chat_template is not None or bool(options.score_tokens)
        self._score_token_ids = [
            _score_token_id(tokenizer, token)
            for token in (config.pooling and config.pooling.score_tokens) or ()
        ]
        own_eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self._eos_token_ids = [
            token_id
            for token_id in dict.fromkeys((*config.eos_token_ids, *own_eos))
            if 0 <= token_id < config.vocab_size
        ]
        try:
            self._sampling = SamplingBuilder(
                config.generation_defaults,
                self.prompts.num_token_ids,
                self.prompts.check_token_ids,
                lambda text: tokenizer.encode(text, add_special_tokens=False),
            )
        except InvalidRequest as error:
            raise ConfigurationError(
                f"generation_config.json of {files.name}: {error}; correct the file"
            ) from error

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
        shared_prefix_tokens: int = 0,
        arrival_time: float = 0.0,
        so_far: Sequence[AnswerSoFar] | None = None,
    ) -> list[EngineCoreRequest]:
        """One engine request for each of the `n` answers, their `request_id`s still to be given.

        The first answer has the seed that was asked for, and the others seeds that follow from it;
        without one, each gets fresh entropy. `so_far` are the answers that another engine began.
        Raises InvalidRequest.
        """
        prompt = truncated(
            prompt_token_ids,
            sampling.truncate_prompt_tokens,
            self.prompts.max_model_len - (sampling.max_tokens or 1),
        )
        room = self._check_prompt(prompt, sampling.max_tokens)
        if self.pooling is not None:
            raise InvalidRequest(
                f"this model does not generate: it {self.pooling.task}s texts, at "
                f"{_ENDPOINTS[self.pooling.task]}"
            )
        params = self._sampling.build(sampling, room)
        _check_priority(priority)
        if cache_salt is not None:
            _check_cache_salt(cache_salt)
        if so_far is not None:
            self._check_so_far(so_far, params)
        requests = [
            EngineCoreRequest(
                request_id=0,
                external_id=request_id,
                prompt_token_ids=prompt,
                params=msgspec.structs.replace(params, n=1, seed=_child_seed(params.seed, index)),
                eos_token_ids=self._eos_token_ids,
                arrival_time=arrival_time,
                priority=priority,
                cache_salt=cache_salt,
                shared_prefix_tokens=shared_prefix_tokens,
            )
            for index in range(params.n)
        ]
        for request, answer in zip(requests, so_far or (), strict=False):
            request.output_token_ids = answer.token_ids
            if answer.begun:
                request.params.prompt_logprobs = None  # they were passed on
        return requests

    def encode_pair(self, query: str, document: str) -> list[int]:
        """The prompt that scores a document: by the chat template, with the roles `query` and
        `document`, where the model says yes or no in words or `--chat-template` gives one, and else
        as the tokenizer joins two texts. Raises InvalidRequest."""
        if not self._templated_pairs:
            self.prompts.check_length(query)
            self.prompts.check_length(document)
            return self.prompts.tokenizer.encode_pair(query, document)
        texts = {"query": query, "document": document}
        messages = [{"role": role, "content": text} for role, text in texts.items()]
        prompt = self.prompts.render_chat(messages)
        for role, text in texts.items():
            if text.strip() not in prompt:
                raise InvalidRequest(
                    f"the chat template does not show messages of the role {role!r}: start the "
                    "server with --chat-template and one that was made for scoring"
                )
        return self.prompts.encode(prompt, add_special_tokens=False)

    def process_pooled(
        self,
        prompt: list[int],
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str | None = None,
        shared_prefix_tokens: int = 0,
        arrival_time: float = 0.0,
    ) -> EngineCoreRequest:
        """The engine request for a prompt's vector, its `request_id` still to be given. Raises
        InvalidRequest."""
        if self.pooling is None:
            raise InvalidRequest(
                "this model generates and gives no vectors or scores: send texts to a server that "
                "was started with a model for that (or with --task embed)"
            )
        if not prompt:
            raise InvalidRequest("the input is empty: give at least one token", "input")
        if (excess := len(prompt) - self.prompts.max_model_len) > 0:
            raise ContextLengthExceeded(
                f"the input has {len(prompt)}: shorten it by {excess}, or give "
                "truncate_prompt_tokens",
                "input",
                context_length=self.prompts.max_model_len,
                prompt_tokens=len(prompt),
            )
        self.prompts.check_token_ids("input", prompt)
        _check_priority(priority)
        if cache_salt is not None:
            _check_cache_salt(cache_salt)
        return EngineCoreRequest(
            request_id=0,
            external_id=request_id,
            prompt_token_ids=prompt,
            params=SamplingParams(detokenize=False),
            arrival_time=arrival_time,
            priority=priority,
            cache_salt=cache_salt,
            shared_prefix_tokens=shared_prefix_tokens,
            pooling=PoolingParams(self.pooling.pooling, self._score_token_ids),
        )

    def _check_so_far(self, so_far: Sequence[AnswerSoFar], params: SamplingParams) -> None:
        assert params.max_tokens is not None
        if len(so_far) != params.n:
            raise InvalidRequest(
                f"{len(so_far)} answers of a prompt are to be resumed, but it has {params.n}",
                "pagelet",
            )
        for answer in so_far:
            if len(answer.token_ids) > params.max_tokens:
                raise InvalidRequest(
                    f"an answer of {len(answer.token_ids)} tokens is to be resumed, but max_tokens "
                    f"is {params.max_tokens}",
                    "pagelet",
                )
            self.prompts.check_token_ids("pagelet", answer.token_ids)

    def _check_prompt(self, prompt: list[int], max_tokens: int | None) -> int:
        """How many tokens may follow the prompt."""
        if not prompt:
            raise InvalidRequest("the prompt is empty: give at least one token", "prompt")
        room = self.prompts.max_model_len - len(prompt)
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt)} and at least one must be left for the answer: "
                f"shorten it by {1 - room}",
                "prompt",
                context_length=self.prompts.max_model_len,
                prompt_tokens=len(prompt),
            )
        if max_tokens is not None and max_tokens > room:
            raise ContextLengthExceeded(
                f"the prompt's {len(prompt)} and the {max_tokens} asked for make "
                f"{len(prompt) + max_tokens}: ask for at most {room}",
                "max_tokens",
                context_length=self.prompts.max_model_len,
                prompt_tokens=len(prompt),
                max_tokens=max_tokens,
            )
        self.prompts.check_token_ids("prompt", prompt)
        return room


def truncated(prompt: Sequence[int], most_tokens: int | None, room: int) -> list[int]:
    """The prompt's last tokens: all for None, and at most `room` for -1. Raises InvalidRequest."""
    if most_tokens is None:
        return list(prompt)
    if most_tokens == -1:
        most_tokens = max(1, room)
    if most_tokens < 1:
        raise InvalidRequest(
            "truncate_prompt_tokens must be at least 1, or -1 for as many as the model takes, got "
            f"{most_tokens}",
            "truncate_prompt_tokens",
        )
    return list(prompt[-most_tokens:])


def _check_priority(priority: int) -> None:
    if not _PRIORITY[0] <= priority <= _PRIORITY[1]:
        raise InvalidRequest("priority must fit in 32 bits (signed)", "priority")


def _check_cache_salt(cache_salt: str) -> None:
    check_unicode("cache_salt", cache_salt)
    if not 1 <= len(cache_salt) <= MAX_CACHE_SALT_CHARACTERS:
        raise InvalidRequest(
            f"cache_salt must have 1 to {MAX_CACHE_SALT_CHARACTERS} characters, "
            f"got {len(cache_salt)}",
            "cache_salt",
        )


def _template_source(tokenizer: Tokenizer, path: str | None) -> str | None:
    if path is None:
        return tokenizer.chat_template
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"chat template {path}: cannot be read: {error}") from error


def _score_token_id(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_id(token)
    if token_id is None:
        spelled = tokenizer.encode(token, add_special_tokens=False)
        if len(spelled) != 1:
            raise ConfigurationError(
                f"--score-tokens: {token!r} is {len(spelled)} tokens of this model's vocabulary: "
                "give two words that are one token each"
            )
        token_id = spelled[0]
    return token_id


def _child_seed(seed: int | None, index: int) -> int:
    if seed is None:
        return secrets.randbits(_SEED_BITS)
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)
