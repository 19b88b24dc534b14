"""What an answer says of the tokens that were read and written."""

import dataclasses
import re
from typing import Final

_NAMES: Final = {
    b"prompt_tokens": "prompt_tokens",
    b"input_tokens": "prompt_tokens",
    b"completion_tokens": "completion_tokens",
    b"output_tokens": "completion_tokens",
    b"cached_tokens": "cached_tokens",
}
"""In chat completions, and in responses and messages."""
_CACHED_INPUT: Final = (b"cache_read_input_tokens", b"cache_creation_input_tokens")
"""Anthropic's API counts them apart from the input."""
_FIELD: Final = re.compile(rb'"(%b)":\s*(\d{1,15})(?!\d)' % b"|".join((*_NAMES, *_CACHED_INPUT)))


@dataclasses.dataclass(slots=True)
class TokenCounts:
    """None for what was not said."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def read_usage(body: bytes) -> TokenCounts:
    """Of a JSON answer, or of the events of a stream: the last `usage` in it.

    A string of the answer cannot be taken for it, as JSON escapes the quotes in strings.
    """
    counts = TokenCounts()
    start = body.rfind(b'"usage":')
    if start >= 0:
        found = {name: int(value) for name, value in _FIELD.findall(body, start)}
        for name, field in _NAMES.items():
            if name in found:
                setattr(counts, field, found[name])
        if counts.prompt_tokens is not None and _CACHED_INPUT[0] in found:
            counts.cached_tokens = found[_CACHED_INPUT[0]]
            counts.prompt_tokens += sum(found.get(name, 0) for name in _CACHED_INPUT)
    return counts
