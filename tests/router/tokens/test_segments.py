"""Encoding by segments is encoding at once, whatever the tokenizer does at their edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from pagelet.router.tokens.segments import SegmentEncoder
from pagelet.text.tokenizer import Tokenizer

SPECIAL = ["<|start|>", "<|end|>", "<|s|>", "<|s|><|x|>", "<lead>", "<trail>", "<tool>"]
PIECES = st.lists(
    st.sampled_from([*SPECIAL, " ", "  ", "\n", "ab", "a b", "ba", "▁", "<|", "|>", "é", "a<b"])
    | st.text("ab <|>\n", max_size=6)
).map("".join)


def bpe() -> Backend:
    characters = [*pre_tokenizers.ByteLevel.alphabet()]
    vocab = {character: i for i, character in enumerate(sorted(characters))}
    merges = [("a", "b"), ("Ġ", "a"), ("Ġa", "b"), ("b", "a"), ("<", "|")]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    return Backend(models.BPE(vocab=vocab, merges=merges))


def byte_level(*, add_prefix_space: bool) -> Backend:
    backend = bpe()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def metaspace(scheme: str) -> Backend:
    letters = ["<unk>", "▁", "a", "b", "ab", "▁a", "▁ab", "<", "|", ">", "s", "x", "\n"]
    merges = [("a", "b"), ("▁", "a"), ("▁", "ab")]
    vocab = {piece: i for i, piece in enumerate(letters)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return backend


def prepending() -> Backend:
    backend = metaspace("never")
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return backend


def with_special_tokens(backend: Backend) -> Tokenizer:
    backend.add_special_tokens(
        [
            *(AddedToken(text, special=True, normalized=False) for text in SPECIAL[:4]),
            AddedToken("<lead>", special=True, normalized=False, lstrip=True),
            AddedToken("<trail>", special=True, normalized=False, rstrip=True),
        ]
    )
    backend.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("a<|s|>a", rstrip=True)])
    return Tokenizer(backend)


TOKENIZERS = {
    "byte level": lambda: byte_level(add_prefix_space=False),
    "byte level with prefix space": lambda: byte_level(add_prefix_space=True),
    "metaspace always": lambda: metaspace("always"),
    "metaspace first": lambda: metaspace("first"),
    "prepending normaliser": prepending,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_segments_encode_as_the_whole(name: str) -> None:
    tokenizer = with_special_tokens(TOKENIZERS[name]())
    segments = SegmentEncoder(tokenizer, most_bytes=5000)

    @given(PIECES)
    def check(text: str) -> None:
        whole = tokenizer.encode(text, add_special_tokens=False)
        assert segments.encode(text, None) == whole
        assert segments.encode(text, None) == whole, "from what is remembered"

    check()


class Counting(Tokenizer):
    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.encoded: list[str] = []

    def encode_batch(self, texts, add_special_tokens=True):
        self.encoded += texts
        return super().encode_batch(texts, add_special_tokens)


def test_only_what_is_new_is_encoded_and_only_for_its_owner() -> None:
    tokenizer = Counting(with_special_tokens(byte_level(add_prefix_space=False)).backend)
    segments = SegmentEncoder(tokenizer, most_bytes=1 << 20)
    segments.encode("<|start|>a<|end|><|start|>b", "one")
    assert tokenizer.encoded == ["<|start|>a", "<|end|>", "<|start|>b"]
    segments.encode("<|start|>a<|end|><|start|>ba", "one")
    assert tokenizer.encoded[3:] == ["<|start|>ba"]
    segments.encode("<|start|>a", "other")
    assert tokenizer.encoded[4:] == ["<|start|>a"]


def test_a_token_that_asks_for_a_words_end_allows_no_cut() -> None:
    backend = byte_level(add_prefix_space=False)
    backend.add_special_tokens([AddedToken("<|s|>", special=True, normalized=False)])
    backend.add_tokens([AddedToken("b<|s|>a", single_word=True, normalized=False)])
    tokenizer = Tokenizer(backend)
    segments = SegmentEncoder(tokenizer, most_bytes=1 << 20)
    for text in ("b<|s|>a", "ab<|s|>a", "b<|s|>ab", "<|s|>b<|s|>a <|s|>"):
        assert segments.encode(text, None) == tokenizer.encode(text, add_special_tokens=False)
