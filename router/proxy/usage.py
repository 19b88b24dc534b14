"""What an answer says of the tokens that were read and written."""

import dataclasses
import re
from typing import Final

_FIELD: Final = re.compile(
    rb'"(prompt_tokens|completion_tokens|cached_tokens)":\s*(\d{1,15})(?!\d)'
)


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
        for name, value in _FIELD.findall(body, start):
            setattr(counts, name.decode(), int(value))
    return counts
