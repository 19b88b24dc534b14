"""Structured output as a caller asks for it."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pagelet.engine.structured.json_schema import json_schema_grammar
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.structured import Grammar, Thinking

if TYPE_CHECKING:
    from pagelet.protocol.openai.structured import StructuredOutputs

MAX_GRAMMAR_CHARACTERS: Final = 512 * 1024
MAX_CHOICES: Final = 10_000
_CHOICE: Final = "a list of texts"
_TYPES: Final = (
    ("json", (dict, str, bool), "a JSON schema: a dict, a bool, or either as text"),
    ("json_object", (bool,), "True or False"),
    ("regex", (str,), "a text"),
    ("choice", (list, tuple), _CHOICE),
    ("grammar", (str,), "a text"),
    ("structural_tag", (dict, str), "a dict, or that as text"),
)
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

    def __post_init__(self) -> None:
        """Raises InvalidRequest for values of wrong types."""
        for name, kinds, words in _TYPES:
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                raise self._wrong(name, words)
        choice = self.choice
        if choice is not None and not all(isinstance(each, str) for each in choice):
            raise self._wrong("choice", _CHOICE)

    def _wrong(self, name: str, words: str) -> InvalidRequest:
        kind = type(getattr(self, name)).__name__
        return InvalidRequest(f"{self.param}: {name} must be {words}, got {kind}", self.param)

    def build(self) -> Grammar:
        """The grammar in a library's words. Raises InvalidRequest."""
        makers: dict[str, Callable[[], Grammar]] = {
            "json": lambda: json_schema_grammar(self.json, self.param),
            "json_object": lambda: json_schema_grammar({"type": "object"}, self.param),
            "regex": lambda: Grammar("llguidance", "regex", _text(self.regex, self.param)),
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


def of_structured_outputs(wanted: "StructuredOutputs", param: str) -> RequestedGrammar:
    """What the field of vLLM's asks."""
    return RequestedGrammar(
        param=param,
        json=wanted.json_,
        json_object=bool(wanted.json_object),
        regex=wanted.regex,
        choice=wanted.choice,
        grammar=wanted.grammar,
        structural_tag=wanted.structural_tag,
    )


def grammar_of(wanted: dict[str, Any], param: str) -> RequestedGrammar:
    """What a dict asks, as the field `structured_outputs` of the HTTP API would. Raises
    InvalidRequest."""
    # Imported here since pydantic takes long, and few write dicts.
    from pydantic import ValidationError

    from pagelet.protocol.openai.errors import describe
    from pagelet.protocol.openai.structured import StructuredOutputs

    try:
        return of_structured_outputs(StructuredOutputs.model_validate(wanted), param)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        detail = describe(found | {"loc": (param, *found["loc"])})
        raise InvalidRequest(detail.message, param, detail.code) from None


def _text(source: str | None, param: str) -> str:
    if not source:
        raise InvalidRequest(f"{param} must not be empty", param)
    return source
