"""Encodes long prompts piece by piece, so that what conversations share is encoded once.

Tokenizers split a text at its special tokens before anything else, and what is between two of them
is encoded whatever stands around it. A chat template puts special tokens around every message: so
each message's tokens can be remembered, whichever conversation it is a part of.
"""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final

from pagelet.router.tokens.cache import WeightedCache
from pagelet.text.tokenizer import Tokenizer

_ENTRY_BYTES: Final = 256
_BYTES_PER_TOKEN: Final = 8


class SegmentEncoder:
    """Encodes texts that spell their special tokens, as chat templates do. For several threads."""

    def __init__(self, tokenizer: Tokenizer, most_bytes: int) -> None:
        """`most_bytes` is about what remembered segments take in memory."""
        self._tokenizer = tokenizer
        self._known: WeightedCache[tuple[str | None, str], list[int]] = WeightedCache(most_bytes)
        added = [
            token
            for token in tokenizer.backend.get_added_tokens_decoder().values()
            if not token.normalized and token.content
        ]
        # A token that takes white space before it, or wants a word's end there, depends on what
        # stands before it: there is no cut at the former, and none at all with the latter.
        self._cuts = {token.content for token in added if token.special and not token.lstrip}
        if any(token.single_word for token in added):
            self._cuts.clear()
        longest_first = sorted((token.content for token in added), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, longest_first)))

    def encode(self, text: str, owner: str | None) -> list[int]:
        """The same as `Tokenizer.encode(text, add_special_tokens=False)`. Only texts of the same
        `owner` profit from it."""
        segments = list(self._split(text)) if self._cuts else [text]
        encoded = [self._known.get((owner, segment)) for segment in segments]
        new = [number for number, ids in enumerate(encoded) if ids is None]
        if new:
            found = self._tokenizer.encode_batch([segments[number] for number in new], False)
            for number, ids in zip(new, found, strict=True):
                encoded[number] = ids
                weight = len(segments[number]) + _BYTES_PER_TOKEN * len(ids) + _ENTRY_BYTES
                self._known.put((owner, segments[number]), ids, weight)
        return list(chain.from_iterable(ids for ids in encoded if ids is not None))

    def _split(self, text: str) -> Iterator[str]:
        """The text, cut before special tokens."""
        start = 0
        for match in self._added.finditer(text):
            if match[0] in self._cuts and match.start() > start:
                yield text[start : match.start()]
                start = match.start()
        yield text[start:]
