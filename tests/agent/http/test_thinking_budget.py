"""The bound of an answer's thinking, from the request to the engine."""

import pytest

from pagelet.protocol.structured import Thinking

from .conftest import serving
from .thinking_llm import ThinkingLLM

MARKS = {"<think>": 17, "</think>": 18}


@pytest.fixture
def thinker():
    async def make_llm(metrics):
        llm = ThinkingLLM(metrics)
        llm.tokenizer.token_id = MARKS.get
        return llm

    with serving(make_llm) as server:
        yield server


def ask(server, **fields):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Why?"}]}
    return server.post("/v1/chat/completions", json=body | fields)


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({"thinking_budget": 5}, 5),
        ({"thinking_token_budget": 0}, 0),
        ({"thinking_budget": 9, "thinking_token_budget": 4}, 4),
    ],
)
def test_the_engine_is_told_the_budget(thinker, fields, budget):
    assert ask(thinker, **fields).status_code == 200
    sampling = thinker.llm.seen[-1][2]
    assert sampling.thinking == Thinking(17, 18, False, budget)


def test_a_grammar_comes_after_the_bounded_thinking(thinker):
    answer = ask(thinker, thinking_budget=3, response_format={"type": "json_object"})
    assert answer.status_code == 200
    sampling = thinker.llm.seen[-1][2]
    assert sampling.structured.thinking == Thinking(17, 18, False, 3)


def test_without_a_budget_nothing_is_bounded(thinker):
    assert ask(thinker).status_code == 200
    assert thinker.llm.seen[-1][2].thinking is None


def ask_messages(server, **thinking):
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Why?"}],
        "max_tokens": 500,
        "thinking": thinking,
    }
    return server.post("/v1/messages", json=body)


def test_the_budget_of_a_message_is_one_too(thinker, serve):
    assert ask_messages(thinker, type="enabled", budget_tokens=1024).status_code == 200
    assert thinker.llm.seen[-1][2].thinking == Thinking(17, 18, False, 1024)
    assert ask_messages(thinker, type="adaptive").status_code == 200
    assert thinker.llm.seen[-1][2].thinking is None
    does_not_think = serve()
    assert ask_messages(does_not_think, type="enabled", budget_tokens=1024).status_code == 200
    assert does_not_think.llm.seen[-1][2].thinking is None
    for kind, budget in (("disabled", 5), ("enabled", -1)):
        refused = ask_messages(thinker, type=kind, budget_tokens=budget)
        assert refused.status_code == 400
        assert "thinking" in refused.json()["error"]["message"]


def test_a_negative_budget_and_models_that_do_not_think_are_refused(thinker, serve):
    assert ask(thinker, thinking_budget=-1).status_code == 400
    refused = ask(serve(), thinking_budget=3)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "thinking_budget"
