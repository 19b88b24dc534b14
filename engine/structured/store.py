"""An engine core's compiled grammars: made in threads of their own, and shared by content."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from pagelet.engine.structured.backend import Matcher
from pagelet.engine.structured.compile import Compiler
from pagelet.engine.structured.vocabulary import Vocabulary
from pagelet.protocol.structured import Grammar

_MOST_GRAMMARS: Final = 64
"""A grammar that requests have explored holds up to some tens of megabytes: a lexer's states."""
_SLOW_PRIORITY: Final = 10
"""A nice value: a tenth of a core. With less, the thread would keep others waiting whenever it has
Python's lock."""
_MOST_SOURCE_BYTES: Final = 16 << 20
"""Of all grammars kept; what is least recently used goes first."""


class GrammarStore:
    """Call it from one thread. `vocabulary` loads the model's tokens; it runs in the store's own
    thread, at `preload` or with the first grammar."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._load = vocabulary
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._slow_thread = ThreadPoolExecutor(1, "slow-grammars", _step_back)
        self._compiler: Future[Compiler] | None = None
        self._compiled: OrderedDict[bytes, tuple[Future[Matcher], int]] = OrderedDict()
        self._size = 0

    def preload(self) -> None:
        """Begins to load what the first grammar would otherwise wait for."""
        if self._compiler is None:
            self._compiler = self._thread.submit(self._make_compiler)

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens; waits until they are `loaded`."""
        assert self._compiler is not None
        return self._compiler.result().vocabulary

    def loaded(self) -> Future[Compiler]:
        """Done once `vocabulary` can be asked for."""
        self.preload()
        assert self._compiler is not None
        return self._compiler

    def compile(self, grammar: Grammar, *, slow: bool = False) -> Future[Matcher]:
        """A matcher to be forked, perhaps only to come. What is `slow` is in no other's way. Fails
        with `GrammarError`, or with whatever made the vocabulary fail to load."""
        key = grammar.key
        found = self._compiled.get(key)
        if found is not None:
            self._compiled.move_to_end(key)
            return found[0]
        self.preload()
        thread = self._slow_thread if slow else self._thread
        future = thread.submit(self._compile, grammar)
        size = len(grammar.source)
        self._compiled[key] = future, size
        self._size += size
        while len(self._compiled) > _MOST_GRAMMARS or (
            self._size > _MOST_SOURCE_BYTES and len(self._compiled) > 1
        ):
            self.forget(next(iter(self._compiled)))
        return future

    def forget(self, key: bytes) -> None:
        """Drops a grammar that is kept: one whose lexer has grown to its bound would hold all that
        memory and fail the next request, too."""
        found = self._compiled.pop(key, None)
        if found is not None:
            self._size -= found[1]

    def close(self) -> None:
        """Ends the threads, once what they are at has ended."""
        for thread in (self._thread, self._slow_thread):
            thread.shutdown(wait=False, cancel_futures=True)

    def _make_compiler(self) -> Compiler:
        compiler = Compiler(self._load())
        compiler.backend("llguidance")
        return compiler

    def _compile(self, grammar: Grammar) -> Matcher:
        assert self._compiler is not None
        return self._compiler.result().compile(grammar)


def _step_back() -> None:
    """Lowers the priority of the calling thread alone, where it is not as low already."""
    thread = threading.get_native_id()
    lowest = max(_SLOW_PRIORITY, os.getpriority(os.PRIO_PROCESS, thread))
    os.setpriority(os.PRIO_PROCESS, thread, lowest)
