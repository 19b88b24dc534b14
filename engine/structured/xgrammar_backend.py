"""Grammars by xgrammar: EBNF as llama.cpp writes it, structural tags, and the few keywords of JSON
Schema that llguidance lacks.

Its import brings transformers with it and takes seconds, so only what needs it imports this module.
"""

import functools
import re
from typing import Self

import torch
import xgrammar

from pagelet.engine.structured.backend import GrammarError, MaskRow
from pagelet.engine.structured.vocabulary import Vocabulary
from pagelet.protocol.structured import Grammar

_MAX_WHITESPACE = 2
_SHOWN = 500
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

    def __init__(self, matcher: xgrammar.GrammarMatcher, *, stuck: bool = False) -> None:
        self._matcher = matcher
        self._stuck = stuck

    def fork(self) -> Self:
        """See `Matcher`."""
        return type(self)(self._matcher.fork(), stuck=self._stuck)

    def accept(self, token_id: int) -> bool:
        """See `Matcher`."""
        self._stuck = self._stuck or not self._matcher.accept_token(token_id)
        return not self._stuck

    def fill(self, row: MaskRow) -> bool:
        """See `Matcher`."""
        row.fill(-1)  # xgrammar leaves a row alone where everything is allowed
        self._matcher.fill_next_token_bitmask(torch.from_numpy(row[None]))
        self._stuck = self._stuck or not row.any()
        return not self._stuck

    @property
    def finished(self) -> bool:
        """See `Matcher`."""
        return self._matcher.is_terminated()

    @property
    def error(self) -> str:
        """See `Matcher`."""
        return "the grammar allows no further token" if self._stuck else ""
