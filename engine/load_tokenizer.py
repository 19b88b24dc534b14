"""Finds a model's tokenizer among its files."""

from typing import Any, Final

import tokenizers

from pagelet.engine.source import ModelFiles
from pagelet.engine.weights.gguf_file import GGUFFile
from pagelet.protocol.errors import ModelSourceError
from pagelet.text.gguf_tokenizer import read_gguf_tokenizer
from pagelet.text.tokenizer import Tokenizer

_SPECIAL_TOKENS: Final = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
_VOCABULARIES: Final = ("vocab*", "*.model", "*.tiktoken", "tekken.json", "dict.txt", "bpe.codes")
"""Files that transformers reads a vocabulary from, besides tokenizer.json."""
_REMEDY: Final = "give another tokenizer with --tokenizer"


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a GGUF file, of a `tokenizer.json`, or else by way of transformers, which
    converts what SentencePiece and tiktoken wrote.

    Raises ModelSourceError if there is none, it cannot be read, or it has no tokens for text.
    """
    tokenizer = _load(files)
    if tokenizer.vocab_size <= len(tokenizer.special_ids):
        raise ModelSourceError(
            f"{files.path}: its tokenizer has {tokenizer.vocab_size} tokens, none of them for "
            f"text; {_REMEDY}"
        )
    return tokenizer


def _load(files: ModelFiles) -> Tokenizer:
    if files.format == "gguf":
        read = read_gguf_tokenizer(GGUFFile(files.path).metadata)
        return Tokenizer(
            read.backend, special_tokens=read.special_tokens, chat_template=read.chat_template
        )
    path = files.tokenizer_json()
    if path is None:
        backend = _convert(files)
    else:
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # `tokenizers` raises no narrower class
            raise ModelSourceError(f"{path}: {error}; download it again") from error
    config = files.tokenizer_config()
    special = {name: _content(config.get(name)) for name in _SPECIAL_TOKENS}
    return Tokenizer(
        backend,
        special_tokens={name: token for name, token in special.items() if token is not None},
        chat_template=files.chat_template(),
    )


def _content(token: Any) -> str | None:
    """A special token in `tokenizer_config.json` is a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _convert(files: ModelFiles) -> tokenizers.Tokenizer:
    # Without any vocabulary transformers would make a tokenizer of special tokens alone.
    if not any(path for pattern in _VOCABULARIES for path in files.path.glob(pattern)):
        raise ModelSourceError(
            f"{files.path}: has no tokenizer.json and no other vocabulary; {_REMEDY}"
        )
    # Imported here since it takes seconds, and nearly all models have a tokenizer.json.
    from transformers import AutoTokenizer

    try:
        converted = AutoTokenizer.from_pretrained(files.path, local_files_only=True)
    except Exception as error:  # whatever the files make it raise
        raise ModelSourceError(
            f"{files.path}: has no tokenizer.json, and transformers cannot read the tokenizer: "
            f"{error}; {_REMEDY}"
        ) from error
    backend = getattr(converted, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ModelSourceError(
            f"{files.path}: {type(converted).__name__} has no tokenizer.json and cannot be "
            f"converted to one; {_REMEDY}"
        )
    return backend
