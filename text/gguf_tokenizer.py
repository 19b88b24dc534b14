"""A tokenizer from the metadata of a GGUF file.

GGUF keeps a vocabulary (`tokenizer.ggml.tokens`, with a type and perhaps a score for each) and says
by name how text is split before it is merged (`tokenizer.ggml.pre`). Two kinds are built from that:
"gpt2", byte-level BPE with its merges, and "llama", SentencePiece BPE, whose merges follow from the
scores. Names and defaults are those of llama.cpp.
"""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from pagelet.protocol.errors import ModelSourceError

T = TypeVar("T")

SPACE: Final = "▁"
"""How SentencePiece spells a space."""


class TokenType(enum.IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Regular expressions that split text before merging, as published with the models.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclasses.dataclass(frozen=True)
class _PreTokenizer:
    patterns: tuple[str, ...]
    """Each splits what the ones before it left."""
    ignore_merges: bool = False
    """A piece that is a token is taken whole, whatever its merges."""
    add_bos: bool = False
    """Unless the file says otherwise."""
    nfc: bool = False


_PRE_TOKENIZERS: Final[dict[str, _PreTokenizer]] = {
    "default": _PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _PreTokenizer((_GPT2,)),
    "smollm": _PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": _PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    "qwen2": _PreTokenizer((_QWEN2,), nfc=True),
    "tekken": _PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
}
_ALIASES: Final = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
}

_SPECIAL_NAMES: Final = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}


@dataclasses.dataclass(frozen=True)
class GGUFTokenizer:
    """What a file holds."""

    backend: Tokenizer
    special_tokens: dict[str, str]
    """`bos_token` and so on, by the names that chat templates use."""
    chat_template: str | None


def read_gguf_tokenizer(metadata: dict[str, Any]) -> GGUFTokenizer:
    """The tokenizer that `metadata` describes.

    Raises ModelSourceError if it is missing, damaged, or of a kind that is not known.
    """
    vocabulary = _Vocabulary(metadata)
    kind = vocabulary.text("model")
    if kind == "gpt2":
        backend = _byte_level(vocabulary)
    elif kind == "llama":
        backend = _sentencepiece(vocabulary)
    else:
        raise ModelSourceError(
            f"GGUF tokenizer model {kind!r} is not supported: only 'gpt2' and 'llama' are"
        )
    return GGUFTokenizer(
        backend=backend,
        special_tokens={
            f"{ours}_token": vocabulary.tokens[token_id]
            for theirs, ours in _SPECIAL_NAMES.items()
            if (token_id := vocabulary.special_id(theirs)) is not None
        },
        chat_template=_typed(metadata, "tokenizer.chat_template", str, None),
    )


def _typed(metadata: dict[str, Any], key: str, kind: type[T], default: T | None) -> T | None:
    """A value of a file that is not to be trusted. Raises ModelSourceError if it is of another
    type."""
    value = metadata.get(key, default)
    if value is not None and not isinstance(value, kind):
        raise ModelSourceError(
            f"the GGUF file's {key} is {value!r:.80}, where {kind.__name__} is expected"
        )
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


class _Vocabulary:
    """Of the entries `tokenizer.ggml...`, by the rest of their names."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self.tokens = self._array("tokens", _string)
        if "tokenizer.ggml.token_type" in metadata:
            self.types = self._same_length("token_type", self._array("token_type", int))
        else:
            self.types = [int(TokenType.NORMAL)] * len(self.tokens)
        self.ids = {
            token: i for i, token in enumerate(self.tokens) if not self._is_padding(i, token)
        }
        """Id of each token; of two that are spelled alike, the later one."""

    def text(self, name: str) -> str | None:
        return _typed(self._metadata, f"tokenizer.ggml.{name}", str, None)

    def _array(self, name: str, read: Callable[[Any], T]) -> list[T]:
        values = self._metadata.get(f"tokenizer.ggml.{name}")
        if values is None:
            raise ModelSourceError(f"the GGUF file has no tokenizer.ggml.{name}")
        try:
            return [read(value) for value in values]
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelSourceError(
                f"the GGUF file's tokenizer.ggml.{name} is no list of what it should hold: {error}"
            ) from error

    def _same_length(self, name: str, values: list[T]) -> list[T]:
        if len(values) != len(self.tokens):
            raise ModelSourceError(
                f"the GGUF file has {len(values)} entries in tokenizer.ggml.{name} "
                f"for {len(self.tokens)} tokens"
            )
        return values

    def _is_padding(self, token_id: int, token: str) -> bool:
        # Converters fill the rows of the embedding that have no token.
        return self.types[token_id] == TokenType.UNUSED and token == f"[PAD{token_id}]"

    def scores(self) -> list[float]:
        return self._same_length("scores", self._array("scores", float))

    def merges(self) -> list[tuple[str, str]]:
        pairs = []
        for merge in self._array("merges", _string):
            left, _, right = merge.partition(" ")
            pairs.append((left, right))
        return pairs

    def flag(self, name: str, default: bool) -> bool:
        return bool(_typed(self._metadata, f"tokenizer.ggml.{name}", int, default))

    def special_id(self, name: str) -> int | None:
        token_id = _typed(self._metadata, f"tokenizer.ggml.{name}_token_id", int, None)
        return token_id if token_id in range(len(self.tokens)) else None

    def finish(self, backend: Tokenizer, *, add_bos: bool, normalized: bool) -> Tokenizer:
        """Adds the tokens that are found whole in a text, and BOS and EOS around it."""
        added = []
        for token, token_id in self.ids.items():
            kind = self.types[token_id]
            if kind in (TokenType.UNKNOWN, TokenType.CONTROL):
                added.append(AddedToken(token, normalized=False, special=True))
            elif kind == TokenType.USER_DEFINED:
                added.append(AddedToken(token, normalized=normalized, special=False))
        backend.add_tokens(added)
        bos = self.special_id("bos") if self.flag("add_bos_token", add_bos) else None
        eos = self.special_id("eos") if self.flag("add_eos_token", False) else None
        around = [(self.tokens[i], i) for i in (bos, eos) if i is not None]
        if around:
            first = [] if bos is None else [f"{self.tokens[bos]}:0"]
            last = [] if eos is None else [f"{self.tokens[eos]}:0"]
            backend.post_processor = processors.TemplateProcessing(
                single=[*first, "$A:0", *last],
                pair=[*first, "$A:0", "$B:0", *last],
                special_tokens=list(dict(around).items()),
            )
        return backend


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    name = vocabulary.text("pre") or "default"
    pre = _PRE_TOKENIZERS.get(_ALIASES.get(name, name))
    if pre is None:
        known = ", ".join(sorted([*_PRE_TOKENIZERS, *_ALIASES]))
        raise ModelSourceError(
            f"GGUF pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known: only {known} are; "
            "give the model's own tokenizer.json in its place"
        )
    merges = vocabulary.merges()
    try:
        model = models.BPE(vocabulary.ids, merges, ignore_merges=pre.ignore_merges)
    except Exception as error:  # `tokenizers` raises no narrower class
        raise ModelSourceError(f"the GGUF file's tokenizer.ggml.merges: {error}") from error
    backend = Tokenizer(model)
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns
    ]
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_only])
    backend.decoder = decoders.ByteLevel()
    return vocabulary.finish(backend, add_bos=pre.add_bos, normalized=False)


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    add_space_prefix = vocabulary.flag("add_space_prefix", True)
    unknown = vocabulary.special_id("unknown")
    model = models.BPE(
        vocabulary.ids,
        _merges_from_scores(vocabulary),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    replace_space = normalizers.Replace(" ", SPACE)
    after: list[decoders.Decoder] = []
    if add_space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace_space])
        after.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = replace_space
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    # User-defined tokens may hold spaces (Gemma's runs of them), so that they must be looked for
    # after spaces are replaced; but the prefix must not become part of them.
    return vocabulary.finish(backend, add_bos=True, normalized=not add_space_prefix)


def _merges_from_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """SentencePiece merges whatever neighbours make the token of the highest score: every way to
    cut a token in two tokens is a merge, and those of better tokens come first."""
    ids = vocabulary.ids
    scores = vocabulary.scores()
    mergeable = [
        token
        for token, token_id in ids.items()
        if len(token) > 1
        and vocabulary.types[token_id] in (TokenType.NORMAL, TokenType.USER_DEFINED)
    ]
    mergeable.sort(key=lambda token: -scores[ids[token]])
    return [
        (token[:cut], token[cut:])
        for token in mergeable
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in ids and token[cut:] in ids
    ]
