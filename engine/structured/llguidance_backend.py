"""Grammars by llguidance: JSON Schema, regular expressions and Lark.

It builds its lexer as it goes, so that a grammar of usual size compiles within a millisecond and a
mask takes some tens of microseconds at any size of the vocabulary.
"""

from collections.abc import Sequence
from typing import Self

import llguidance
import numpy as np

from pagelet.engine.structured.backend import GrammarError, MaskRow
from pagelet.engine.structured.json_schema import WHITESPACE
from pagelet.engine.structured.regex import portable
from pagelet.engine.structured.regex_fault import pattern_fault, regex_fault
from pagelet.engine.structured.vocabulary import Vocabulary
from pagelet.protocol.structured import Grammar

_MEGA = 1_000_000
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=5 * _MEGA,
    step_lexer_fuel=_MEGA // 5,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=_MEGA,
    verbose_errors=False,
)
"""What one grammar may cost: the steps' bounds are about 15 ms, and a lexer state 1 to 2 kB."""
_TEXT = r'[^"\\\x00-\x1F\x7F]'
_LENGTHS = (4, 7, 10, 14, 20, 30)
_SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{_TEXT}{{1,{most}}}" for most in _LENGTHS), f"{_TEXT}+"]
"""Texts whose tokens are allowed at once, where a grammar allows all such text. With lengths of 10
and 30 alone, as llguidance has them, nearly all tokens are looked at one by one in a string of JSON
that may have fewer characters more."""
_SHOWN = 500
_NO_TEXT = "no text matches: a rule, or a '$ref', leads to nothing but itself"


class _TokenTable:
    """What `llguidance.TokenizerWrapper` reads. Where a grammar leaves one text to go on with, its
    tokens are those that `__call__` cuts it into."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.tokens: Sequence[bytes] = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self._encode = vocabulary.encode
        self._by_first_byte: dict[int, list[int]] = {}
        special = frozenset(vocabulary.special_ids)
        for token_id, token in enumerate(vocabulary.tokens):
            if token and token_id not in special:
                self._by_first_byte.setdefault(token[0], []).append(token_id)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        token_ids = self._encode(data.decode(errors="replace"))
        if b"".join(self.tokens[token_id] for token_id in token_ids) == data:
            return token_ids
        return self._cut(data)  # SentencePiece puts a space before a text

    def _cut(self, data: bytes) -> list[int]:
        """The longest token each time."""
        token_ids = []
        while data:
            candidates = (
                token_id
                for token_id in self._by_first_byte.get(data[0], ())
                if data.startswith(self.tokens[token_id])
            )
            longest = max(candidates, key=lambda token_id: len(self.tokens[token_id]), default=None)
            if longest is None:
                break
            token_ids.append(longest)
            data = data[len(self.tokens[longest]) :]
        return token_ids


class LLGuidanceBackend:
    """Implements `Backend`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_TokenTable(vocabulary)),
            n_vocab=vocabulary.size,
            eos_token=list(vocabulary.eos_token_ids),
            slices=_SLICES,
        )

    def compile(self, grammar: Grammar) -> "LLGuidanceMatcher":
        """See `Backend`."""
        make = llguidance.LLMatcher
        try:
            match grammar.kind:
                case "json_schema":
                    source = make.grammar_from_json_schema(
                        grammar.source, overrides={"whitespace_pattern": WHITESPACE}
                    )
                case "regex":
                    source = make.grammar_from_regex(portable(grammar.source))
                case "lark":
                    source = make.grammar_from_lark(grammar.source)
                case _:
                    raise AssertionError(f"llguidance is not for {grammar.kind}")
        except ValueError as error:
            raise GrammarError(str(error)[:_SHOWN]) from error
        made = make(self._tokenizer, source, log_level=0, limits=_LIMITS)
        matcher = LLGuidanceMatcher(made)
        if found := matcher.error:
            if grammar.kind == "regex":
                found = regex_fault(made.get_error(), grammar.source)
            elif grammar.kind == "json_schema":
                found = pattern_fault(found)
            raise GrammarError(found[:_SHOWN])
        return matcher


class LLGuidanceMatcher:
    """Implements `Matcher`."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def fork(self) -> Self:
        """See `Matcher`."""
        return type(self)(self._matcher.deep_copy())

    def accept(self, token_id: int) -> bool:
        """See `Matcher`."""
        return self._matcher.consume_token(token_id)

    def fill(self, row: MaskRow) -> bool:
        """See `Matcher`."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        return not self._matcher.is_error() and bool(np.any(row))

    @property
    def finished(self) -> bool:
        """See `Matcher`."""
        return self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """See `Matcher`."""
        error = self._matcher.get_error()
        return _NO_TEXT if error.startswith("NoExtensionBias") else error[:_SHOWN]
