"""What each token of a vocabulary stands for, worked out once a tokenizer.

`tokenizers.Tokenizer.decode` runs a pipeline of decoders over all tokens of a text. The two
pipelines of nearly all language models come down to a table of pieces, one a token:

- byte-level BPE (GPT-2, Llama 3, Qwen): a token is bytes, and the text is the UTF-8 decoding of all
  of them;
- SentencePiece with byte fallback (Llama 2, Mistral, Gemma): a token is text, except for 256 tokens
  that are one byte each.

Everything else is decoded by calling the pipeline on a few tokens at a time.
"""

import json
from typing import Any, Final, Literal

import tokenizers

Kind = Literal["bytes", "byte_fallback", "pipeline"]
Piece = str | bytes

MAX_TOKEN_ID: Final = 2**32 - 1
"""Largest id that `tokenizers` can be asked for."""


def _byte_characters() -> dict[str, int]:
    """GPT-2's map of characters to bytes: printable Latin-1 stands for itself, and the rest counts
    up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table


BYTE_CHARACTERS: Final = _byte_characters()


class Pieces(dict[int, Piece]):
    """Piece of each token id, filled in as ids come up.

    A str is text in its own right; bytes may be part of a character. A token that does not show in
    the text (special, or no token at all) is `b""`.
    """

    def __init__(self, decoding: "TokenDecoding", skip_special_tokens: bool) -> None:
        super().__init__()
        self._decoding = decoding
        self._skipped = decoding.special_ids if skip_special_tokens else frozenset()

    def __missing__(self, token_id: int) -> Piece:
        if token_id in self._skipped:
            self[token_id] = b""
            return b""
        token = self._decoding.token(token_id)
        if token is None:
            return b""  # not kept: a client may send any number of such ids to be decoded
        piece = self._decoding.piece(token)
        self[token_id] = piece
        return piece


class TokenDecoding:
    """How a tokenizer's tokens become text."""

    kind: Kind
    leading_spaces: int
    """Most spaces that are cut from the start of a text (the dummy prefix of Llama 2)."""
    special_ids: frozenset[int]

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self.leading_spaces = 0
        self._replacements: list[tuple[str, str]] = []
        self.kind = self._read_pipeline()
        self._shown = Pieces(self, skip_special_tokens=False)
        self._special_skipped = Pieces(self, skip_special_tokens=True)

    def pieces(self, skip_special_tokens: bool) -> Pieces:
        """The table of pieces; one object for all texts."""
        return self._special_skipped if skip_special_tokens else self._shown

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None if there is no token of this id."""
        if not 0 <= token_id <= MAX_TOKEN_ID:
            return None
        return self.tokenizer.id_to_token(token_id)

    def piece(self, token: str) -> Piece:
        """What a token of the vocabulary adds to a text."""
        if self.kind == "bytes":
            try:
                data = bytes([BYTE_CHARACTERS[char] for char in token])
            except KeyError:  # an added token is spelled as it is
                return token
            try:
                return data.decode()
            except UnicodeDecodeError:
                return data
        for old, new in self._replacements:
            token = token.replace(old, new)
        if self.kind == "byte_fallback" and _is_byte_token(token):
            return bytes([int(token[3:5], 16)])
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of a token, special ones included; empty if there is no such token."""
        if self.kind == "pipeline":
            return self.tokenizer.decode([token_id], skip_special_tokens=False).encode()
        piece = self._shown[token_id]
        return piece.encode() if isinstance(piece, str) else piece

    def _read_pipeline(self) -> Kind:
        if self.tokenizer.decoder is None:
            return "pipeline"
        steps = _steps(json.loads(self.tokenizer.decoder.__getstate__()))
        kinds = [step["type"] for step in steps]
        if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
            return "bytes"
        replacements = []
        while kinds[:1] == ["Replace"]:
            replacements.append((steps[0]["pattern"].get("String"), steps[0]["content"]))
            steps, kinds = steps[1:], kinds[1:]
        if any(not old for old, _ in replacements):  # regular expressions
            return "pipeline"
        if kinds == ["ByteFallback", "Fuse", "Strip"]:
            if steps[2]["content"] != " " or steps[2]["stop"] != 0:
                return "pipeline"
            self.leading_spaces = steps[2]["start"]
        elif kinds not in (["ByteFallback"], ["ByteFallback", "Fuse"]):
            return "pipeline"
        self._replacements = replacements
        return "byte_fallback"


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """A pipeline as a flat list of decoders."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _steps(part)]


def _is_byte_token(token: str) -> bool:
    if len(token) != 6 or not token.startswith("<0x") or token[5] != ">":
        return False
    return all(digit in "0123456789abcdefABCDEF" for digit in token[3:5])
