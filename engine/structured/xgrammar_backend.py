"""Grammars by xgrammar: EBNF as llama.cpp writes it, structural tags, and the few keywords of JSON
Schema that llguidance lacks.

Its import brings transformers with it and takes seconds, so only what needs it imports this module.
"""

import functools
import re
from typing import Self

import numpy as np
import torch
import xgrammar

from pagelet.engine.structured.backend import TOO_SLOW, GrammarError, MaskRow
from pagelet.engine.structured.bounded_calls import BoundedCalls
from pagelet.engine.structured.vocabulary import Vocabulary
from pagelet.protocol.structured import Grammar

_MAX_WHITESPACE = 2
_SHOWN = 500
_MASK_SECONDS = 0.03
"""Of a core, for a mask: one takes a tenth of a millisecond, and those of some grammars seconds."""
_calls = BoundedCalls(_MASK_SECONDS)
_NO_TOKEN = "the grammar allows no further token"
_LOG_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


class XGrammarBackend:
    """Implements `Backend`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiler = self._make_compiler(set())

    @functools.cached_property
    def _json_compiler(self) -> xgrammar.GrammarCompiler:
        """Without the tokens of control characters, which xgrammar lets into strings of bounded
        length though JSON has them only escaped."""
        controls = frozenset(range(0x20)) - {0x0A}
        tokens = enumerate(self._vocabulary.tokens)
        return self._make_compiler({i for i, token in tokens if not controls.isdisjoint(token)})

    def _make_compiler(self, left_out: set[int]) -> xgrammar.GrammarCompiler:
        vocabulary = self._vocabulary
        hidden = left_out.union(vocabulary.special_ids)
        # A token without bytes is never text.
        tokens = [b"" if i in hidden else token for i, token in enumerate(vocabulary.tokens)]
        return xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo(
                tokens,
                vocab_type=xgrammar.VocabType.RAW,
                vocab_size=vocabulary.size,
                stop_token_ids=list(vocabulary.eos_token_ids),
            ),
            max_threads=1,
            cache_enabled=False,
        )

    def compile(self, grammar: Grammar) -> "XGrammarMatcher":
        """See `Backend`."""
        try:
            match grammar.kind:
                case "json_schema":
                    compiled = self._json_compiler.compile_json_schema(
                        grammar.source, max_whitespace_cnt=_MAX_WHITESPACE, strict_mode=False
                    )
                case "ebnf":
                    compiled = self._compiler.compile_grammar(grammar.source)
                case "structural_tag":
                    compiled = self._compiler.compile_structural_tag(grammar.source)
                case _:
                    raise AssertionError(f"xgrammar is not for {grammar.kind}")
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarError(_LOG_PREFIX.sub("", str(error))[:_SHOWN]) from error
        return XGrammarMatcher(xgrammar.GrammarMatcher(compiled))


class XGrammarMatcher:
    """Implements `Matcher`."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, error: str = "") -> None:
        self._matcher = matcher
        self.error = error
        """See `Matcher`. With one, the native matcher may still be at work, and is let alone."""

    def fork(self) -> Self:
        """See `Matcher`."""
        return type(self)(self._matcher if self.error else self._matcher.fork(), self.error)

    def accept(self, token_id: int) -> bool:
        """See `Matcher`."""
        if not self.error and not self._matcher.accept_token(token_id):
            self.error = _NO_TOKEN
        return not self.error

    def fill(self, row: MaskRow) -> bool:
        """See `Matcher`."""
        if self.error:
            return False
        matcher = self._matcher
        words = np.full((1, len(row)), -1, np.int32)  # left alone where everything is allowed
        mask = torch.from_numpy(words)
        if not _calls.run(lambda: matcher.fill_next_token_bitmask(mask)):
            self.error = TOO_SLOW
        elif not words.any():
            self.error = _NO_TOKEN
        row[:] = words[0]
        return not self.error

    @property
    def finished(self) -> bool:
        """See `Matcher`."""
        return not self.error and self._matcher.is_terminated()
