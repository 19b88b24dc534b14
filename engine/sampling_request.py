"""Sampling as a caller asks for it, and the one place that checks and completes it.

The order of defaults is: what the request gives, then the model's `generation_config.json`, then
what OpenAI's API does.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from pagelet.engine.structured.requested import RequestedGrammar
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.sampling import SamplingParams
from pagelet.protocol.structured import Thinking
from pagelet.text.tokenizer import check_unicode

MAX_N: Final = 128
MAX_LOGPROBS: Final = 20
"""Most candidates a position, as in OpenAI's API."""
MAX_STOP_STRINGS: Final = 16
"""OpenAI allows 4; agents' frameworks send more."""
MAX_STOP_CHARACTERS: Final = 4096
"""Of all stop strings of a request together."""
MAX_LOGIT_BIASES: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 128
MAX_BAD_WORDS: Final = 256
MAX_BAD_WORD_CHARACTERS: Final = 256


_NOT_SAMPLING: Final = ("default_max_tokens", "structured", "thinking", "truncate_prompt_tokens")
_INT64: Final = (-(2**63), 2**63 - 1)


@dataclasses.dataclass(slots=True, kw_only=True)
class RequestedSampling:
    """What a caller gave; None is "not given". See `SamplingParams` for the meanings."""

    n: int | None = None
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    """What `max_tokens` is if neither the request nor the model says, cut to what the prompt
    leaves; None for all that it leaves."""
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """-1 and 0 keep all tokens."""
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    detokenize: bool | None = None
    structured: RequestedGrammar | None = None
    """What the answer must match. `LLM` also takes a dict, as `structured_outputs` of the HTTP
    API."""
    thinking: Thinking | None = None
    """Bounds how long an answer without `structured` thinks; otherwise that says it."""
    truncate_prompt_tokens: int | None = None
    """Keep so many tokens of the prompt's end."""


@dataclasses.dataclass(frozen=True)
class _Range:
    low: float
    high: float
    above_low: bool = False

    def check(self, name: str, value: float) -> None:
        # NaN fails every comparison.
        if self.low <= value <= self.high and not (self.above_low and value == self.low):
            return
        words = "greater than" if self.above_low else "at least"
        raise InvalidRequest(
            f"{name} must be {words} {self.low:g} and at most {self.high:g}, got {value}", name
        )


_RANGES: Final = {
    "n": _Range(1, MAX_N),
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1, above_low=True),
    "min_p": _Range(0, 1),
    "repetition_penalty": _Range(0.01, 100),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
}


def check_num_answers(param: str, number: int) -> None:
    """Raises InvalidRequest for a number of answers, as `param` gives it, that is out of range."""
    _RANGES["n"].check(param, number)


_INTEGERS: Final = ("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs")
_BOUNDED_BIAS: Final = 100.0


class SamplingBuilder:
    """Makes `SamplingParams` that the engine core may trust.

    `generation_defaults` are the model's own; `check_token_ids(param, ids)` raises InvalidRequest
    for ids that are no tokens, and `encode` cuts a text into tokens. Raises InvalidRequest if the
    defaults themselves are out of range.
    """

    def __init__(
        self,
        generation_defaults: dict[str, Any],
        vocab_size: int,
        check_token_ids: Callable[[str, Collection[int]], None],
        encode: Callable[[str], list[int]],
    ) -> None:
        self._encode = encode
        self._vocab_size = vocab_size
        self._check_token_ids = check_token_ids
        self._defaults = generation_defaults
        params = self.build(RequestedSampling(), max_new_tokens=1)
        self.defaults: dict[str, object] = {
            name: getattr(params, name)
            for name in SamplingParams.__struct_fields__
            if name not in ("n", "max_tokens", "seed")
        }
        """What is in force where a request gives nothing."""

    def build(self, requested: RequestedSampling, max_new_tokens: int) -> SamplingParams:
        """Checked parameters; `seed` stays None if none was given.

        `max_new_tokens` is the room after the prompt, at least 1: the default of `max_tokens`.
        Raises InvalidRequest.
        """
        values = dict(self._defaults)
        default = requested.default_max_tokens
        for field in dataclasses.fields(requested):
            if field.name in _NOT_SAMPLING:
                continue
            value = getattr(requested, field.name)
            if value is not None:
                values[field.name] = value
        for name in _INTEGERS:
            if name in values:
                values[name] = _integer(name, values[name])
        for name, allowed in _RANGES.items():
            if name in values:
                allowed.check(name, values[name])
        self._check_lengths(values, min(max_new_tokens, default or max_new_tokens))
        self._check_top_k(values)
        self._check_logprobs(values)
        self._check_stops(values)
        if "logit_bias" in values:
            values["logit_bias"] = self._logit_bias(values["logit_bias"])
        if "allowed_token_ids" in values:
            values["allowed_token_ids"] = self._allowed_token_ids(values["allowed_token_ids"])
        if values.get("bad_words"):
            values["bad_words"] = list(dict.fromkeys(values["bad_words"]))
            values["bad_word_token_ids"] = self._bad_word_token_ids(values["bad_words"])
        if not _INT64[0] <= values.get("seed", 0) <= _INT64[1]:
            raise InvalidRequest("seed must fit in 64 bits (signed)", "seed")
        return SamplingParams(**values)

    def _check_lengths(self, values: dict[str, Any], default_max_tokens: int) -> None:
        max_tokens = values.setdefault("max_tokens", default_max_tokens)
        if max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {max_tokens}", "max_tokens")
        min_tokens = values.get("min_tokens", 0)
        if not 0 <= min_tokens <= max_tokens:
            raise InvalidRequest(
                f"min_tokens must be at least 0 and at most {max_tokens}, the most tokens that the "
                f"answer may have, got {min_tokens}",
                "min_tokens",
            )

    def _check_top_k(self, values: dict[str, Any]) -> None:
        top_k = values.get("top_k", 0)
        if top_k < -1:
            raise InvalidRequest(
                f"top_k must be at least 1, or -1 or 0 to keep all tokens, got {top_k}", "top_k"
            )
        values["top_k"] = 0 if top_k == -1 or top_k >= self._vocab_size else top_k

    def _check_logprobs(self, values: dict[str, Any]) -> None:
        most = min(MAX_LOGPROBS, self._vocab_size)
        for name in ("logprobs", "prompt_logprobs"):
            if name in values:
                _Range(0, most).check(name, values[name])

    def _check_stops(self, values: dict[str, Any]) -> None:
        stop = values.get("stop", [])
        values["stop"] = stop = [stop] if isinstance(stop, str) else list(dict.fromkeys(stop))
        if not all(stop):
            raise InvalidRequest("a stop string must not be empty", "stop")
        check_unicode("stop", *stop)
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"at most {MAX_STOP_STRINGS} stop strings, got {len(stop)}", "stop"
            )
        if (length := sum(map(len, stop))) > MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"the stop strings together must be at most {MAX_STOP_CHARACTERS} characters "
                f"long, got {length}",
                "stop",
            )
        if stop and not values.get("detokenize", True):
            raise InvalidRequest("stop strings need detokenize", "stop")
        token_ids = list(dict.fromkeys(values.get("stop_token_ids", [])))
        values["stop_token_ids"] = token_ids
        if len(token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"at most {MAX_STOP_TOKEN_IDS} stop_token_ids, got {len(token_ids)}",
                "stop_token_ids",
            )
        self._check_token_ids("stop_token_ids", token_ids)

    def _allowed_token_ids(self, token_ids: Sequence[int]) -> list[int]:
        if not token_ids:
            raise InvalidRequest("allowed_token_ids must not be empty", "allowed_token_ids")
        self._check_token_ids("allowed_token_ids", token_ids)
        return sorted(set(token_ids))

    def _bad_word_token_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Each word as it is spelled at the beginning of a text and after a space (vLLM's rule)."""
        if len(words) > MAX_BAD_WORDS or any(
            not 0 < len(word) <= MAX_BAD_WORD_CHARACTERS for word in words
        ):
            raise InvalidRequest(
                f"bad_words takes at most {MAX_BAD_WORDS} words of 1 to {MAX_BAD_WORD_CHARACTERS} "
                "characters",
                "bad_words",
            )
        check_unicode("bad_words", *words)
        spelled = [
            tuple(self._encode(text))
            for word in words
            for text in (word.lstrip() or word, " " + word.lstrip())
        ]
        return [list(token_ids) for token_ids in dict.fromkeys(spelled) if token_ids]

    def _logit_bias(self, biases: dict[int, float]) -> dict[int, float] | None:
        if len(biases) > MAX_LOGIT_BIASES:
            raise InvalidRequest(
                f"logit_bias may name at most {MAX_LOGIT_BIASES} tokens, got {len(biases)}",
                "logit_bias",
            )
        self._check_token_ids("logit_bias", biases)
        for token_id, bias in biases.items():
            if not math.isfinite(bias):
                raise InvalidRequest(
                    f"logit_bias of token {token_id} must be a number from -100 to 100, got {bias}",
                    "logit_bias",
                )
        return {
            token_id: min(max(float(bias), -_BOUNDED_BIAS), _BOUNDED_BIAS)
            for token_id, bias in biases.items()
        } or None


def _integer(name: str, value: Any) -> int:
    """`generation_config.json` may write integers as 50.0."""
    if isinstance(value, float) and not value.is_integer():
        raise InvalidRequest(f"{name} must be an integer, got {value}", name)
    return int(value)
