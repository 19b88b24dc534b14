"""`\\d`, `\\w` and `\\s` mean what a caller's own check of the answer means by them."""

import llguidance
import pytest

from pagelet.engine.structured.regex import portable


class _Bytes:
    """One token a byte."""

    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())


@pytest.fixture(scope="module")
def matches():
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)

    def matches(source, text):
        grammar = llguidance.LLMatcher.grammar_from_regex(portable(source))
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        assert not matcher.get_error()
        data = text.encode()
        return matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()

    return matches


NEWEST_DIGIT = "\U0001e4f0"  # no digit in the Unicode of Python 3.11
ARABIC_DIGIT = "\u0663"


@pytest.mark.parametrize(
    ("source", "yes", "no"),
    [
        (r"\d", "7", ARABIC_DIGIT + NEWEST_DIGIT),
        (r"[\d.]", "7.", ARABIC_DIGIT),
        (r"[a\w-]", "aZ_-9", "é" + ARABIC_DIGIT),
        (r"[\w-.]", "aZ_9-.", "é,"),
        (r"[]\d]", "]7", ARABIC_DIGIT),
        (r"\s", "\t\n\x0b\x0c\r ", "\u00a0\u2003"),
        (r"[^\d]", "aé", "7" + ARABIC_DIGIT),
        (r"[^\w\s]", ".", "aé7_ \u00a0"),
        (r"[^]\d]", "a", "]7" + ARABIC_DIGIT),
        (r"\W", ".", "aé"),
        (r"[a-z&&\w]", "a", "é_"),
        (r"[\[\d]", "[7", ARABIC_DIGIT),
        (r"(?i)[k]\d?", "kK", "j"),
    ],
)
def test_classes(matches, source, yes, no):
    assert {character: matches(source, character) for character in yes + no} == {
        **dict.fromkeys(yes, True),
        **dict.fromkeys(no, False),
    }


def test_an_escaped_backslash_is_no_class(matches):
    assert matches(r"\\d", "\\d")
    assert not matches(r"\\d", "\\7")
