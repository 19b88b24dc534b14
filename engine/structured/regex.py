"""Regular expressions whose matches every common dialect takes."""

import re
from typing import Final

_PIECE: Final = re.compile(r"\\.|\[\^?|\]|[^\\\[\]]+|\\", re.DOTALL)
_ASCII: Final = {r"\d": "[0-9]", r"\w": "[A-Za-z0-9_]", r"\s": r"[\t\n\x0b\x0c\r ]"}


def portable(source: str) -> str:
    r"""`source` (Rust's syntax) with `\d`, `\w` and `\s` of ASCII only.

    Rust counts the digits and letters of all scripts, JavaScript and Go only ASCII's, and Python
    those of its own version of Unicode: the caller that checks an answer would find it wrong. In a
    negated class the wide meaning stays, since there it is the one that all dialects share.
    """
    written = []
    negated: list[bool] = []
    after_open = False  # a `]` that comes first is a character
    for piece in _PIECE.findall(source):
        if piece.startswith("["):
            negated.append(len(piece) > 1)
        elif piece == "]" and negated and not after_open:
            negated.pop()
        elif piece in _ASCII and not any(negated):
            piece = _ASCII[piece]
        written.append(piece)
        after_open = piece in ("[", "[^")
    return "".join(written)
