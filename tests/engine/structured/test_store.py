"""Compiled grammars of an engine core."""

import os
import threading

from pagelet.engine.structured.compile import Compiler
from pagelet.engine.structured.store import _SLOW_PRIORITY, GrammarStore
from pagelet.engine.structured.vocabulary import make_vocabulary
from pagelet.protocol.structured import Grammar


def test_a_slow_grammar_keeps_no_other_waiting(smollm2, monkeypatch):
    vocabulary = make_vocabulary(*smollm2)
    store = GrammarStore(lambda: vocabulary)
    compile_, go_on = Compiler.compile, threading.Event()
    nice = {}

    def compile_watched(compiler, grammar):
        thread = threading.get_native_id()
        nice[grammar.source] = os.getpriority(os.PRIO_PROCESS, thread)
        if grammar.source == "slow":
            assert go_on.wait(60)
        return compile_(compiler, grammar)

    monkeypatch.setattr(Compiler, "compile", compile_watched)
    slow = store.compile(Grammar("llguidance", "regex", "slow"), slow=True)
    assert store.compile(Grammar("llguidance", "regex", "quick")).result(60)
    assert not slow.done()
    go_on.set()
    assert slow.result(60)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert nice["quick"] == own
    assert nice["slow"] == max(own, _SLOW_PRIORITY)
    store.close()
