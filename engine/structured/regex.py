"""Regular expressions whose matches every common dialect takes."""

import re
from collections.abc import Iterator
from typing import Final

_PIECE: Final = re.compile(r"\\.|\[\^?|\]|[^\\\[\]]+|\\", re.DOTALL)
_ASCII: Final = {r"\d": "[0-9]", r"\w": "[A-Za-z0-9_]", r"\s": r"[\t\n\x0b\x0c\r ]"}


def portable(source: str) -> str:
    r"""`source` (Rust's syntax) with `\d`, `\w` and `\s` of ASCII only.

    Rust counts the digits and letters of all scripts, JavaScript and Go only ASCII's, and Python
    those of its own version of Unicode: the caller that checks an answer would find it wrong. In a
    negated class the wide meaning stays, since there it is the one that all dialects share.
    """
    return "".join(written for _, written in portable_pieces(source))


def portable_pieces(source: str) -> Iterator[tuple[str, str]]:
    """The pieces of `source` in order, each with what `portable` makes of it."""
    negated: list[bool] = []
    after_open = False  # a `]` that comes first is a character
    for piece in _PIECE.findall(source):
        written = piece
        if piece.startswith("["):
            negated.append(len(piece) > 1)
        elif piece == "]" and negated and not after_open:
            negated.pop()
        elif piece in _ASCII and not any(negated):
            written = _ASCII[piece]
        yield piece, written
        after_open = piece in ("[", "[^")
