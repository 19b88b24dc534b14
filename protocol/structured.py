"""What an answer must match, as it crosses from the API process to the engine core."""

import hashlib
from typing import Literal

import msgspec

GrammarBackend = Literal["llguidance", "xgrammar"]
GrammarKind = Literal["json_schema", "regex", "lark", "ebnf", "structural_tag"]


class Grammar(msgspec.Struct, array_like=True, frozen=True):
    """A grammar in the words of the library that enforces it."""

    backend: GrammarBackend
    kind: GrammarKind
    source: str
    """JSON for `json_schema` and `structural_tag`, otherwise the text of the regex or grammar."""

    @property
    def key(self) -> bytes:
        """Names the grammar by its content alone, so that whoever asks for the same shares it."""
        return hashlib.sha256(
            b"%b\0%b\0%b" % (self.backend.encode(), self.kind.encode(), self.source.encode())
        ).digest()


class Thinking(msgspec.Struct, array_like=True, frozen=True):
    """The tokens around a model's thinking, which no grammar constrains."""

    begin_token_id: int
    end_token_id: int
    begun: bool
    """Whether the prompt ends inside of it; else the answer may begin with `begin_token_id`."""
    budget: int | None = None
    """Most tokens of it, the marks not counted: then comes `end_token_id`. None for no limit."""


class StructuredOutput(msgspec.Struct, array_like=True, frozen=True):
    """A request's grammar, and what may come before it."""

    grammar: Grammar | None
    """None if only the thinking is bounded."""
    thinking: Thinking | None = None
    slow: bool = False
    """Whether the grammar takes more than a moment to compile."""
