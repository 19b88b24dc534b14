"""Prompt lookup: what followed the last tokens of a sequence when they occurred in it before.

The idea is Saxena's "prompt lookup decoding" (2023): answers that quote their prompt need no draft
model. An index is kept as tokens come in, so that a lookup does not scan the sequence: the last
place of each short n-gram, and from each place the one before it, as in LZ77's hash chains
(RFC 1951, section 4).
"""

from collections.abc import Sequence

_TOKEN_BITS = 22
"""A token id in the key of an n-gram; larger vocabularies are not wrong, only found less often."""
_MOST_CANDIDATES = 16
"""Places looked at for the longest match, the latest first."""


class NgramIndex:
    """The n-grams of one sequence that only grows."""

    def __init__(self, shortest: int, longest: int) -> None:
        """Matches of at least `shortest` last tokens count, and up to `longest` are compared."""
        self._shortest = shortest
        self._longest = longest
        self._key = 0
        self._mask = (1 << _TOKEN_BITS * shortest) - 1
        self._latest: dict[int, int] = {}
        """The key of an n-gram to where it ended last."""
        self._earlier: list[int] = [-1]
        """Of every place the one before it with the same n-gram, or -1; place i is after token
        i - 1."""

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow; none if the last ones are new.

        `token_ids` must begin with the tokens of the call before. Where the match overlaps the
        end, what is proposed goes on with itself: a period repeats.
        """
        end = len(token_ids)
        place = self._add(token_ids)
        best, best_length = -1, self._shortest - 1
        for _ in range(_MOST_CANDIDATES):
            if place < 0 or best_length == self._longest:
                break
            length = self._match_length(token_ids, place, end)
            if length > best_length:
                best, best_length = place, length
            place = self._earlier[place]
        if best < 0:
            return []
        proposed: list[int] = []
        for at in range(best, best + count):
            proposed.append(token_ids[at] if at < end else proposed[at - end])
        return proposed

    def _add(self, token_ids: Sequence[int]) -> int:
        """Takes in the new tokens; returns the place before the end with the same n-gram."""
        latest, earlier = self._latest, self._earlier
        for place in range(len(earlier), len(token_ids) + 1):
            self._key = ((self._key << _TOKEN_BITS) ^ token_ids[place - 1]) & self._mask
            if place < self._shortest:
                earlier.append(-1)
            else:
                earlier.append(latest.get(self._key, -1))
                latest[self._key] = place
        return earlier[len(token_ids)]

    def _match_length(self, token_ids: Sequence[int], place: int, end: int) -> int:
        """How many tokens before `place` are those before the end."""
        most = min(self._longest, place)
        length = 0
        while length < most and token_ids[place - 1 - length] == token_ids[end - 1 - length]:
            length += 1
        return length
