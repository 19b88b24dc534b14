"""`best_of` of completions: the likeliest of more answers than are told."""

import statistics

import pytest

from support.router_thread import router_thread

from .conftest import RunningServer
from .real_engine import replica, simulated


@pytest.fixture(scope="module")
def direct():
    with replica(simulated()) as server:
        yield server


@pytest.fixture(params=["direct", "routed"])
def server(request, direct):
    if request.param == "direct":
        yield direct
        return
    with router_thread(direct.url) as port:
        yield RunningServer(direct.llm, direct.app, port, direct._loop)


def complete(server, **fields):
    body = {"model": "tiny", "prompt": ["Once upon", "In the end"], "max_tokens": 6, "seed": 5}
    answer = server.post("/v1/completions", json=body | {"temperature": 1} | fields, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def mean_logprob(choice):
    return statistics.fmean(choice["logprobs"]["token_logprobs"])


def test_the_likeliest_are_told(server):
    drawn = complete(server, n=5, logprobs=0)
    expected = []
    for first in (0, 5):
        choices = drawn["choices"][first : first + 5]
        assert len({choice["text"] for choice in choices}) == 5
        expected += sorted(choices, key=mean_logprob, reverse=True)[:2]
    for fields in ({"logprobs": 0}, {}):
        told = complete(server, n=2, best_of=5, **fields)
        assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]
        assert [choice["text"] for choice in told["choices"]] == [each["text"] for each in expected]
        assert [choice["logprobs"] is None for choice in told["choices"]] == [not fields] * 4
        assert told["usage"]["completion_tokens"] == drawn["usage"]["completion_tokens"]


def test_of_a_prompt_alone_there_is_nothing_to_choose(server):
    told = complete(server, max_tokens=0, echo=True, best_of=3)
    assert [choice["text"] for choice in told["choices"]] == ["Once upon", "In the end"]


@pytest.mark.parametrize("best_of", [129, 2**40])
def test_too_many(server, best_of):
    body = {"model": "tiny", "prompt": "a", "best_of": best_of}
    answer = server.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("best_of", "n")
