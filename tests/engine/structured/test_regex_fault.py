"""What is wrong with a regular expression is told of the one that was sent, and where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagelet.engine.structured.backend import GrammarError
from pagelet.protocol.structured import Grammar

PIECES = ["a", "é", "😀", r"\d", r"[\w]", r"[^\s]", "/", r"\/", "\n", "\t", r"\\", "(b|c)", "]"]


def fault(compiler, source, kind="regex"):
    with pytest.raises(GrammarError) as caught:
        compiler.compile(Grammar("llguidance", kind, source))
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("(?=x)y", "regex: look-ahead is not supported: '(?=' at character 1"),
        (r"\d\w(?!x)y", "regex: look-ahead is not supported: '(?!' at character 5"),
        ("ab(?<!x)", "regex: look-behind is not supported: '(?<!' at character 3"),
        (r"(a)\1", r"regex: backreferences are not supported: '\\1' at character 4"),
        ("a(b", "regex: unclosed group: '(' at character 2"),
        (r"\d[z-a]", "class range, the start must be <= the end: 'z-a' at character 4"),
        (r"[\\]x\bfoo", r"regex: word boundaries are not supported: '\\b' at character 6"),
        ("a^b", "regex: '^' and '$' are supported only where it begins and ends"),
        ("(?m)^a$", "regex: '^' and '$' are supported only where it begins and ends"),
    ],
)
def test_faults_are_named_as_they_were_sent(compiler, source, words):
    assert fault(compiler, source).endswith(words)


@given(st.lists(st.sampled_from(PIECES), max_size=400))
def test_the_place_is_that_of_what_was_sent(compiler, pieces):
    before = "".join(pieces)
    words = "regex: look-ahead is not supported: '(?='"
    assert fault(compiler, f"{before}(?=x)") == f"{words} at character {len(before) + 1}"


def test_patterns_of_schemas_have_the_place_too(compiler):
    schema = r'{"type": "object", "properties": {"a": {"type": "string", "pattern": "ab(?=x)"}}}'
    words = "the pattern 'ab(?=x)': look-ahead is not supported: '(?=' at character 3"
    assert fault(compiler, schema, "json_schema").endswith(words)
