"""The one interface behind which the grammar libraries are."""

from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from pagelet.protocol.structured import Grammar

MaskRow = npt.NDArray[np.int32]
"""[ceil(vocab_size / 32)]: bit `i % 32` of word `i // 32` is set if token i is allowed."""


TOO_SLOW: Final = "it takes too long at each token; make it simpler"
"""What is wrong with a grammar whose masks do."""


class GrammarError(ValueError):
    """A grammar that a library refuses, in words for whoever wrote it."""


class Matcher(Protocol):
    """How far one answer has come in its grammar."""

    def fork(self) -> Self:
        """A matcher of its own at the same place."""
        ...

    def accept(self, token_id: int) -> bool:
        """Goes on by one token. False if the grammar does not allow it here, and then for good."""
        ...

    def fill(self, row: MaskRow) -> bool:
        """Writes which tokens may come next; end-of-sequence tokens are among them exactly where
        the text may end. False if none may, or if this place is too complex to tell."""
        ...

    @property
    def finished(self) -> bool:
        """Whether the text is complete and nothing can follow."""
        ...

    @property
    def error(self) -> str:
        """Why the last call said False."""
        ...


class Backend(Protocol):
    """A library with one model's vocabulary."""

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the grammar's beginning, to be forked. Raises `GrammarError`."""
        ...
