"""Text from a stream of tokens: exact, linear, and never taken back.

For every way to cut the stream, the joined results of `push` and `finish` equal one
`tokenizers.Tokenizer.decode` of all ids. A token costs the same at any length of the text.
"""

import codecs
from collections.abc import Sequence
from typing import Final, Protocol

from pagelet.text.token_decoding import Pieces, TokenDecoding

REPLACEMENT: Final = "\ufffd"


class Detokenizer(Protocol):
    """The state of one text."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain with these tokens and was not before; may be empty."""

    def finish(self) -> str:
        """What was held back; no `push` may follow."""


def make_detokenizer(decoding: TokenDecoding, skip_special_tokens: bool) -> Detokenizer:
    """A detokenizer for one text of the tokenizer that `decoding` describes."""
    if decoding.kind == "bytes":
        return ByteLevelDetokenizer(decoding.pieces(skip_special_tokens))
    if decoding.kind == "byte_fallback":
        return ByteFallbackDetokenizer(
            decoding.pieces(skip_special_tokens), decoding.leading_spaces
        )
    return PipelineDetokenizer(decoding, skip_special_tokens)


class ByteLevelDetokenizer:
    """Tokens are bytes. At most three wait: the beginning of one UTF-8 character."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._pending = b""

    def push(self, token_ids: Sequence[int]) -> str:
        text = ""
        for token_id in token_ids:
            piece = self._pieces[token_id]
            if isinstance(piece, str) and not self._pending:
                text += piece
            elif piece:
                data = self._pending + (piece.encode() if isinstance(piece, str) else piece)
                characters, used = codecs.utf_8_decode(data, "replace", False)
                self._pending = data[used:]
                text += characters
        return text

    def finish(self) -> str:
        text = self._pending.decode(errors="replace")
        self._pending = b""
        return text


class ByteFallbackDetokenizer:
    """Tokens are text, and characters outside the vocabulary are runs of one-byte tokens.

    `tokenizers` takes a whole run as UTF-8, or else shows U+FFFD for each of its bytes; one bad
    byte changes how all of its run reads. So a run waits for the token after it.
    """

    def __init__(self, pieces: Pieces, leading_spaces: int) -> None:
        self._pieces = pieces
        self._leading_spaces = leading_spaces
        self._run = bytearray()

    def push(self, token_ids: Sequence[int]) -> str:
        text = ""
        for token_id in token_ids:
            piece = self._pieces[token_id]
            if isinstance(piece, str):
                text += self._end_run() + piece if self._run else piece
            else:
                self._run += piece
        return self._cut(text) if self._leading_spaces and text else text

    def finish(self) -> str:
        return self._cut(self._end_run())

    def _end_run(self) -> str:
        run = self._run
        self._run = bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return REPLACEMENT * len(run)

    def _cut(self, text: str) -> str:
        while self._leading_spaces and text:
            if text[0] != " ":
                self._leading_spaces = 0
                break
            text = text[1:]
            self._leading_spaces -= 1
        return text


class PipelineDetokenizer:
    """Any other tokenizer: decodes a window of the last tokens, and the same without the new ones.

    The tokens that gave the last text stay in the window as context, since pipelines treat the
    first token of a text differently. Text that ends in U+FFFD may be half a character, and waits
    for up to `_MAX_WAITING` tokens, so that the window stays small whatever the model writes. This
    is exact for pipelines that look no further back than one token, as all known ones do; for
    others it is as near as decoding piece by piece can be.
    """

    _MAX_WAITING: Final = 8

    def __init__(self, decoding: TokenDecoding, skip_special_tokens: bool) -> None:
        self._tokenizer = decoding.tokenizer
        self._skipped = decoding.special_ids if skip_special_tokens else frozenset()
        self._window: list[int] = []
        self._num_context = 0
        self._context_text = ""

    def push(self, token_ids: Sequence[int]) -> str:
        text = ""
        for token_id in token_ids:
            if token_id in self._skipped or self._tokenizer.id_to_token(token_id) is None:
                continue  # neither may be the window's only context
            self._window.append(token_id)
            decoded = self._decode(self._window)
            waiting = len(self._window) - self._num_context
            if decoded.endswith(REPLACEMENT) and waiting < self._MAX_WAITING:
                continue
            if len(decoded) > len(self._context_text) or waiting >= self._MAX_WAITING:
                text += self._advance(decoded)
        return text

    def finish(self) -> str:
        return self._advance(self._decode(self._window)) if self._window else ""

    def _advance(self, decoded: str) -> str:
        text = decoded[len(self._context_text) :]
        del self._window[: self._num_context]
        self._num_context = len(self._window)
        self._context_text = self._decode(self._window)
        return text

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
