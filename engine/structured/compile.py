"""From a grammar to a matcher, by the library that it names."""

import threading

import numpy as np

from pagelet.engine.structured.backend import Backend, GrammarError, Matcher
from pagelet.engine.structured.vocabulary import Vocabulary
from pagelet.protocol.structured import Grammar, GrammarBackend


class Compiler:
    """Both libraries over one vocabulary; each is loaded when it is first asked for. May be called
    from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._backends: dict[GrammarBackend, Backend] = {}
        self._lock = threading.Lock()

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning. Raises `GrammarError` for a grammar that the library refuses,
        and for one that matches no text, or only the empty one."""
        matcher = self.backend(grammar.backend).compile(grammar)
        row = np.zeros(mask_words(self.vocabulary.size), np.int32)
        first = matcher.fork()
        if not first.fill(row):
            raise GrammarError(first.error or "the grammar matches no text")
        ends = np.zeros_like(row).view(np.uint8)
        for token_id in self.vocabulary.eos_token_ids:
            ends[token_id // 8] |= 1 << token_id % 8
        if matcher.finished or not (row.view(np.uint8) & ~ends).any():
            raise GrammarError("the grammar matches only the empty text")
        return matcher

    def backend(self, name: GrammarBackend) -> Backend:
        """The library, loaded if it is not yet."""
        with self._lock:
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = _load(name, self.vocabulary)
            return backend


def mask_words(vocab_size: int) -> int:
    """32-bit words of a mask row."""
    return -(-vocab_size // 32)


def _load(name: GrammarBackend, vocabulary: Vocabulary) -> Backend:
    if name == "llguidance":
        from pagelet.engine.structured.llguidance_backend import LLGuidanceBackend

        return LLGuidanceBackend(vocabulary)
    from pagelet.engine.structured.xgrammar_backend import XGrammarBackend

    return XGrammarBackend(vocabulary)
