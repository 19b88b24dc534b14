"""Where one answer stands between thinking and its grammar."""

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np

from pagelet.engine.structured.backend import MaskRow, Matcher
from pagelet.protocol.structured import Thinking

_MOST_FORCED = 16
"""Looked for at once."""


class ConstrainedAnswer:
    """A matcher, and the thinking that may come before what it matches; without a matcher every
    text may follow.

    While the model thinks every token is allowed but, before a matcher's text, those that end the
    answer; when the budget is used up, only the end of the thinking is. An answer whose prompt does
    not end in thinking may begin with it, or with the text at once.
    """

    def __init__(
        self,
        matcher: Matcher | None,
        thinking: Thinking | None,
        eos_token_ids: list[int],
        grammar_key: bytes = b"",
        *,
        num_words: int,
        allowed_token_ids: Sequence[int] | None = None,
    ) -> None:
        """`num_words` is the length of a `MaskRow`; other tokens than `allowed_token_ids` may not
        come at all."""
        self._matcher = matcher
        self._thinking = thinking
        self._eos_token_ids = eos_token_ids
        self._thinks = thinking is not None and thinking.begun
        self._may_begin = thinking is not None and not thinking.begun
        self._num_thoughts = 0
        self._num_words = num_words
        self._allowed: MaskRow | None = None
        if allowed_token_ids is not None:
            self._allowed = np.zeros(num_words, np.int32)
            for token_id in allowed_token_ids:
                if token_id < 32 * num_words:  # a model may have more than its tokenizer
                    _set_bit(self._allowed, token_id, True)
        self._forced: tuple[int, ...] = ()
        self._row: MaskRow | None = None
        """The mask after the forced tokens, once it is known."""
        self.grammar_key = grammar_key
        """Of the grammar that the matcher was made from."""
        self.error = ""
        """Why the last call said False."""

    def fork(self) -> Self:
        """The same place, from which another answer can go on."""
        other = copy.copy(self)
        other._matcher = None if self._matcher is None else self._matcher.fork()
        return other

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and nothing can follow."""
        return not self._thinks and self._matcher is not None and self._matcher.finished

    def accept(self, token_id: int) -> bool:
        """Goes on by one token; False if it is not allowed here."""
        if self._forced and self._forced[0] == token_id:
            self._forced = self._forced[1:]
        else:
            self._forced, self._row = (), None
        thinking = self._thinking
        if thinking is not None:
            if self._thinks:
                self._thinks = token_id != thinking.end_token_id
                self._num_thoughts += 1
                return True
            if self._may_begin:
                self._may_begin = False
                if token_id == thinking.begin_token_id:
                    self._thinks = True
                    return True
        if self._matcher is None or self._matcher.accept(token_id):
            return True
        self.error = self._matcher.error or "a token does not match the grammar"
        return False

    def fill(self, row: MaskRow) -> bool:
        """Writes which tokens may come next; False if none may."""
        if self._forced:
            row.fill(0)
            _set_bit(row, self._forced[0], True)
            return True
        if self._row is None:
            if not self._fill(row):
                return False
            self._row = row.copy()
        else:
            np.copyto(row, self._row)
        return True

    def forced(self) -> tuple[int, ...]:
        """Tokens that must come next, each the only one allowed in its place; perhaps not all that
        there are."""
        if self._forced:
            return self._forced
        row = self._row
        if row is None:
            row = np.empty(self._num_words, np.int32)
            if not self._fill(row):
                return ()
            self._row = row
        run: list[int] = []
        ahead = self
        while row is not None and len(run) < _MOST_FORCED:
            token_id = _only_token(row)
            if token_id is None or token_id in self._eos_token_ids:
                break
            if not run:
                ahead = self.fork()
            run.append(token_id)
            row = np.empty(self._num_words, np.int32)
            if not ahead.accept(token_id) or ahead.finished or not ahead._fill(row):
                row = None
        if run:
            self._forced, self._row = tuple(run), row
        return self._forced

    def _fill(self, row: MaskRow) -> bool:
        if not self._fill_any(row):
            return False
        if self._allowed is not None:
            row &= self._allowed
            if not row.any():
                self.error = (
                    "what the answer must match and 'allowed_token_ids' exclude each other: no "
                    "token is left that could come next"
                )
                return False
        return True

    def _fill_any(self, row: MaskRow) -> bool:
        """As if all tokens were allowed."""
        if self._thinks:
            assert self._thinking is not None
            budget = self._thinking.budget
            if budget is not None and self._num_thoughts >= budget:
                row.fill(0)
                _set_bit(row, self._thinking.end_token_id, True)
                return True
            row.fill(-1)
            for token_id in self._eos_token_ids if self._matcher is not None else ():
                _set_bit(row, token_id, False)
            return True
        if self._matcher is None:
            row.fill(-1)
            return True
        if not self._matcher.fill(row):
            self.error = self._matcher.error or "the grammar allows no further token"
            return False
        if self._may_begin:
            assert self._thinking is not None
            _set_bit(row, self._thinking.begin_token_id, True)
        return True


def _only_token(row: MaskRow) -> int | None:
    """The token of a mask that allows no other."""
    if np.count_nonzero(row) != 1:  # nearly always
        return None
    index = int(np.flatnonzero(row)[0])
    word = int(row[index]) & 0xFFFFFFFF
    return None if word & (word - 1) else 32 * index + word.bit_length() - 1


def _set_bit(row: MaskRow, token_id: int, value: bool) -> None:
    octets = row.view(np.uint8)
    bit = np.uint8(1 << token_id % 8)
    if value:
        octets[token_id // 8] |= bit
    else:
        octets[token_id // 8] &= ~bit
