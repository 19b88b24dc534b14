"""Random prompts of a given number of tokens: as token ids, or as text for servers and endpoints
that take no ids."""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from pagelet.bench.load.workload import Content
from pagelet.text.tokenizer import Tokenizer

_POOL_WORDS = 2000
_CANDIDATES = 200_000

_COMMON_WORDS: Final = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back parent face level office door health person
art war history party result change morning reason research girl guy moment air teacher force
"""
"""One token each in nearly every vocabulary."""


class Vocabulary(Protocol):
    """Where prompts are drawn from."""

    def draw(self, rng: np.random.Generator, num_tokens: int) -> Content:
        """Content of that many tokens; contents of one vocabulary can be joined with `+`."""
        ...


class TokenIds:
    """Token ids, each equally likely: exact lengths, and nothing to tokenise for the server."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = np.asarray(ids)

    def draw(self, rng: np.random.Generator, num_tokens: int) -> Content:
        """See `Vocabulary`."""
        return tuple(rng.choice(self._ids, num_tokens).tolist())


class Words:
    """Words, each with a space before it."""

    def __init__(self, words: Sequence[str] = tuple(_COMMON_WORDS.split())) -> None:
        self.words = tuple(words)
        self._words = np.asarray(words)

    def draw(self, rng: np.random.Generator, num_tokens: int) -> Content:
        """See `Vocabulary`."""
        return "".join(f" {word}" for word in rng.choice(self._words, num_tokens))


def token_ids(tokenizer: Tokenizer) -> TokenIds:
    """All ids that stand for text."""
    left_out = tokenizer.special_ids | tokenizer.missing_ids
    return TokenIds([i for i in range(tokenizer.max_token_id + 1) if i not in left_out])


def single_token_words(tokenizer: Tokenizer) -> Words:
    """Words that are one token each, so that a text of n of them has n tokens, give or take the
    first one and what the server puts around a prompt.

    Raises `ValueError` if the vocabulary has too few such words.
    """
    backend = tokenizer.backend
    words = []
    for token_id in range(min(tokenizer.max_token_id + 1, _CANDIDATES)):
        text = backend.decode([token_id], skip_special_tokens=True)
        word = text.strip()
        if len(word) > 2 and word.isascii() and word.isalpha() and word.islower():
            words.append(word)
    words = sorted(set(words))
    # In the middle of a text, since some tokenizers treat its beginning differently.
    context = " time"
    alone = len(backend.encode(context, add_special_tokens=False).ids)
    encodings = backend.encode_batch_fast(
        [f"{context} {word}" for word in words], add_special_tokens=False
    )
    single = [
        word
        for word, encoding in zip(words, encodings, strict=True)
        if len(encoding.ids) == alone + 1
    ]
    if len(single) < 100:
        raise ValueError(f"the vocabulary has only {len(single)} words of one token")
    return Words(single[:: max(1, len(single) // _POOL_WORDS)])
