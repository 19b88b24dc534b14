"""Structured output as a caller asks for it."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from pagelet.engine.structured.json_schema import json_schema_grammar
from pagelet.engine.structured.regex import portable
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.structured import Grammar, Thinking

MAX_GRAMMAR_CHARACTERS: Final = 512 * 1024
MAX_CHOICES: Final = 10_000
_KINDS: Final = "json, json_object, regex, choice, grammar and structural_tag"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestedGrammar:
    """What an answer must match: exactly one of these. `param` is the name for errors."""

    param: str = "structured"
    json: Any = None
    """A JSON schema: an object, true, or either as text."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    choice: Sequence[str] | None = None
    """One of these texts."""
    grammar: str | None = None
    """EBNF as llama.cpp writes it (`root ::= ...`), or Lark (`start: ...`)."""
    structural_tag: Any = None
    """xgrammar's structural tags, as an object or as text."""
    lark: str | None = None
    """A grammar that the server itself wrote."""
    thinking: Thinking | None = None
    """What may come before."""

    def build(self) -> Grammar:
        """The grammar in a library's words. Raises InvalidRequest."""
        makers: dict[str, Callable[[], Grammar]] = {
            "json": lambda: json_schema_grammar(self.json, self.param),
            "json_object": lambda: json_schema_grammar({"type": "object"}, self.param),
            "regex": lambda: Grammar(
                "llguidance", "regex", portable(_text(self.regex, self.param))
            ),
            "choice": self._choice,
            "grammar": self._grammar,
            "structural_tag": self._structural_tag,
            "lark": lambda: Grammar("llguidance", "lark", _text(self.lark, self.param)),
        }
        given = [
            name
            for name in makers
            if getattr(self, name) is not None and (name != "json_object" or self.json_object)
        ]
        if len(given) != 1:
            named = ", ".join(given) or "none"
            raise InvalidRequest(f"{self.param} needs one of {_KINDS}, and has {named}", self.param)
        grammar = makers[given[0]]()
        if len(grammar.source) > MAX_GRAMMAR_CHARACTERS:
            raise InvalidRequest(
                f"{self.param} has {len(grammar.source)} characters; at most "
                f"{MAX_GRAMMAR_CHARACTERS} are taken",
                self.param,
            )
        try:
            grammar.source.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"{self.param} has half a surrogate pair, which is no character", self.param
            ) from None
        return grammar

    def _choice(self) -> Grammar:
        assert self.choice is not None
        choices = list(dict.fromkeys(self.choice))
        if not choices or not all(choices) or len(choices) > MAX_CHOICES:
            raise InvalidRequest(
                f"{self.param} needs 1 to {MAX_CHOICES} choices, none of them empty", self.param
            )
        options = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        # As one terminal, since the alternatives of a rule are tried one by one.
        return Grammar("llguidance", "lark", f"start: CHOICE\nCHOICE: {options}")

    def _grammar(self) -> Grammar:
        source = _text(self.grammar, self.param)
        if "::=" in source:
            return Grammar("xgrammar", "ebnf", source)
        return Grammar("llguidance", "lark", source)

    def _structural_tag(self) -> Grammar:
        tag = self.structural_tag
        if not isinstance(tag, str):
            tag = json.dumps(tag, ensure_ascii=False)
        return Grammar("xgrammar", "structural_tag", _text(tag, self.param))


def _text(source: str | None, param: str) -> str:
    if not source:
        raise InvalidRequest(f"{param} must not be empty", param)
    return source
