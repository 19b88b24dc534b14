"""What callers of `LLM` give it: no HTTP API has looked at its types, so that is done here."""

import dataclasses
import json
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from pagelet.engine.sampling_request import RequestedSampling
from pagelet.engine.structured.requested import RequestedGrammar, grammar_of
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.structured import Thinking

Prompt = str | Sequence[int]
Conversation = list[dict[str, Any]]
"""Messages, each with a `role` and its `content`, as in OpenAI's API."""

_SHOWN: Final = 80
"""Characters of a wrong value in its error."""


def listed_prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """One prompt or several, each text or token ids. Raises InvalidRequest."""
    if isinstance(prompts, str):
        return [prompts]
    items = _items(prompts)
    if items is None:
        raise _wrong("prompts", prompts, _PROMPTS)
    if items and _is_integer(items[0]):
        items = [items]
    return [each if isinstance(each, str) else _prompt_ids(each) for each in items]


def listed_conversations(
    messages: Conversation | Sequence[Conversation],
) -> tuple[list[Conversation], bool]:
    """One conversation or several, and whether it is one. Raises InvalidRequest."""
    items = _items(messages)
    if items is not None and all(isinstance(item, dict) for item in items):
        return [items], True
    listed = [_items(item) for item in items or ()]
    conversations = [each for each in listed if each and all(isinstance(m, dict) for m in each)]
    if items is None or len(conversations) < len(listed):
        raise _wrong(
            "messages",
            messages,
            "a conversation, which is a list of {'role': ..., 'content': ...}, or a list of such "
            "conversations",
        )
    return conversations, False


def listed_sampling(
    sampling: RequestedSampling | Sequence[RequestedSampling] | None, number: int
) -> list[RequestedSampling]:
    """Of each of `number` prompts, with values of the right types. Raises InvalidRequest."""
    if sampling is None or isinstance(sampling, RequestedSampling):
        return [checked_sampling(sampling)] * number
    items = None if isinstance(sampling, str) else _items(sampling)
    if items is None or isinstance(sampling, Mapping):
        return [checked_sampling(sampling)] * number
    if len(items) != number:
        raise InvalidRequest(f"{number} prompts but {len(items)} sampling parameters")
    return list(map(checked_sampling, items))


def listed_adapters(adapter: str | Sequence[str | None] | None, number: int) -> list[str | None]:
    """The names of adapters for each of `number` prompts. Raises InvalidRequest."""
    if adapter is None or isinstance(adapter, str):
        return [adapter] * number
    items = _items(adapter)
    if items is None:
        raise _wrong("adapter", adapter, "a name, or one (or None) for each prompt")
    if len(items) != number:
        raise InvalidRequest(f"{number} prompts but {len(items)} adapters", "adapter")
    return items


def checked_sampling(sampling: object) -> RequestedSampling:
    """Raises InvalidRequest for what is none, and for a value of a wrong type in it."""
    if sampling is None:
        return RequestedSampling()
    if not isinstance(sampling, RequestedSampling):
        raise _wrong("sampling", sampling, "a RequestedSampling(temperature=..., max_tokens=...)")
    checked = {}
    for field in dataclasses.fields(sampling):
        value = getattr(sampling, field.name)
        if value is not None:
            convert, words = _KINDS[field.name]
            converted = convert(value)
            if converted is None:
                raise _wrong(field.name, value, words)
            checked[field.name] = converted
    return RequestedSampling(**checked)


def checked_number(name: str, value: float) -> float:
    """Raises InvalidRequest for what is no number."""
    number = _number(value)
    if number is None:
        raise _wrong(name, value, "a number")
    return number


def checked_flag(name: str, value: bool) -> bool:
    """Raises InvalidRequest for what is neither True nor False."""
    convert, words = _FLAG
    if convert(value) is None:
        raise _wrong(name, value, words)
    return value


def _wrong(name: str, value: object, words: str) -> InvalidRequest:
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return InvalidRequest(f"{name} must be {words}; got {shown} ({type(value).__name__})", name)


_PROMPTS: Final = "a text, a list of token ids, or a list of such prompts"


def _prompt_ids(prompt: Any) -> list[int]:
    token_ids = _token_ids(prompt)
    if token_ids is None:
        raise _wrong("prompts", prompt, _PROMPTS)
    return token_ids


def _items(value: Any) -> list[Any] | None:
    """None for what is no list of anything."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        return None
    return list(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


# Each returns the value as the engine takes it, or None if it is of a wrong type.


def _integer(value: Any) -> int | None:
    if _is_integer(value) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    if not _is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:  # of an integer
        return math.inf if value > 0 else -math.inf


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _token_ids(value: Any) -> list[int] | None:
    items = _items(value)
    if items is None or not all(map(_is_integer, items)):
        return None
    return list(map(int, items))


def _texts(value: Any) -> list[str] | None:
    items = _items(value)
    if items is None or not all(isinstance(item, str) for item in items):
        return None
    return items


def _stop(value: Any) -> list[str] | None:
    return [value] if isinstance(value, str) else _texts(value)


def _biases(value: Any) -> dict[int, float] | None:
    if not isinstance(value, Mapping):
        return None
    biases = {token_id: _number(bias) for token_id, bias in value.items()}
    if not all(map(_is_integer, biases)) or None in biases.values():
        return None
    return {int(token_id): bias for token_id, bias in biases.items() if bias is not None}


def _grammar(value: Any) -> RequestedGrammar | None:
    if isinstance(value, Mapping):
        value = grammar_of(dict(value), "structured")
    if not isinstance(value, RequestedGrammar):
        return None
    try:
        json.dumps([value.json, value.structural_tag], allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{value.param} is no JSON: {error}", value.param) from error
    return value


def _thinking(value: Any) -> Thinking | None:
    if not isinstance(value, Thinking):
        return None
    try:
        return msgspec.convert(msgspec.to_builtins(value), Thinking)
    except (msgspec.ValidationError, TypeError):
        return None


_Kind = tuple[Callable[[Any], Any], str]
_INTEGER: Final[_Kind] = _integer, "an integer"
_NUMBER: Final[_Kind] = _number, "a number"
_FLAG: Final[_Kind] = _flag, "True or False"
_TOKEN_IDS: Final[_Kind] = _token_ids, "a list of token ids"
_KINDS: Final[dict[str, _Kind]] = {
    **dict.fromkeys(("n", "max_tokens", "default_max_tokens", "min_tokens", "top_k"), _INTEGER),
    **dict.fromkeys(("seed", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"), _INTEGER),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), _NUMBER),
    **dict.fromkeys(("ignore_eos", "include_stop_str_in_output", "detokenize"), _FLAG),
    "skip_special_tokens": _FLAG,
    **dict.fromkeys(("allowed_token_ids", "stop_token_ids"), _TOKEN_IDS),
    "stop": (_stop, "a text or a list of texts"),
    "bad_words": (_texts, "a list of texts"),
    "logit_bias": (_biases, "a dict from token ids (integers) to numbers"),
    "structured": (
        _grammar,
        "a RequestedGrammar, or a dict as in the HTTP API's structured_outputs, such as "
        '{"json": {...}} or {"regex": "..."}',
    ),
    "thinking": (_thinking, "a Thinking, with ids of tokens"),
}
