"""What llguidance finds wrong with a regular expression, told of the one that was sent.

It tells of a grammar that it makes of the expression, with some characters escaped, over several
lines of which one points to the place.
"""

import re
from typing import Final

from pagelet.engine.structured.regex import portable_pieces

_PARSE_ERROR: Final = re.compile(
    r"regex parse error:\n {4}(?P<shown>.*)\n {4}(?P<before> *)(?P<marks>\^+)\nerror: (?P<error>.+)"
)
_LOOK: Final = re.compile(r"lookarounds not supported yet; (?P<kind>\w+) in regex")
_ESCAPED: Final = "\n\t\r/"
"""Characters that it writes with a backslash, where there is none yet."""
_WORD_BOUNDARIES: Final = (r"\b", r"\B", r"\<", r"\>")


def regex_fault(message: str, source: str) -> str:
    """llguidance's `message` about `source`, before `portable`, in words for whoever wrote it."""
    look = _LOOK.search(message)
    if look is not None:
        if not look["kind"].startswith("Word"):
            return "regex: '^' and '$' are supported only where it begins and ends"
        at = 0
        for piece, _ in portable_pieces(source):
            if piece in _WORD_BOUNDARIES:
                return f"regex: word boundaries are not supported: {_place(piece, at)}"
            at += len(piece)
        return "regex: word boundaries are not supported"
    found = _PARSE_ERROR.search(message)
    if found is None:
        return f"regex: {message.splitlines()[0].rpartition('(in regex): ')[2]}"
    origins = _origins(source)
    begin = len(found["before"])
    end = begin + len(found["marks"])
    if len(origins) != len(found["shown"]) + 1 or end >= len(origins):
        return f"regex: {found['error']}"
    at = origins[begin]
    piece = source[at : max(origins[end], at + 1)]
    return f"regex: {_words(found['error'], piece)}: {_place(piece, at)}"


def pattern_fault(message: str) -> str:
    """The same for a message about a `pattern` of a JSON schema; other messages stay."""
    found = _PARSE_ERROR.search(message)
    if found is None:
        return message
    begin = len(found["before"])
    piece = found["shown"][begin : begin + len(found["marks"])]
    words = _words(found["error"], piece)
    return f"the pattern {found['shown']!r}: {words}: {_place(piece, begin)}"


def _origins(source: str) -> list[int]:
    """For each character of what llguidance shows, and for its end, the place in `source`."""
    origins: list[int] = []
    at = 0
    for piece, written in portable_pieces(source):
        if piece != written:
            origins += [at] * len(written)
        elif piece[0] == "\\":
            origins += range(at, at + len(piece))
        else:
            for place, character in enumerate(piece, at):
                origins += [place] * (2 if character in _ESCAPED else 1)
        at += len(piece)
    return [*origins, at]


def _words(error: str, piece: str) -> str:
    if not error.startswith("look-around"):
        return error
    return f"look-{'behind' if '<' in piece else 'ahead'} is not supported"


def _place(piece: str, at: int) -> str:
    return f"{piece[:40]!r} at character {at + 1}"
