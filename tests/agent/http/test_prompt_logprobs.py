"""Logprobs of prompts: those of a long one take long, and nobody else waits for them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pagelet.engine.outputs import PositionLogprobs

BODIES = {
    "completions": {"prompt": "hello", "prompt_logprobs": 2},
    "completions with echo": {"prompt": "hello", "echo": True, "logprobs": 2},
    "completions of a batch": {"prompt": ["hello", "you"], "prompt_logprobs": 2},
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 2},
}


class SlowList(list):
    """Takes its time when it is read."""

    def __init__(self, items, wait):
        super().__init__(items)
        self._wait = wait

    def __iter__(self):
        self._wait()
        return super().__iter__()


@pytest.mark.parametrize("slow", ["making", "writing"])
@pytest.mark.parametrize("kind", BODIES)
def test_others_are_answered_while_those_of_a_prompt_are_made(server, kind, slow):
    begun, go_on = threading.Event(), threading.Event()

    def wait():
        begun.set()
        assert go_on.wait(60)

    def make(position):
        if slow == "writing":
            return PositionLogprobs(position.chosen, SlowList(position.top, wait))
        wait()
        return position

    def ask():
        body = {"model": "tiny", "max_tokens": 2} | BODIES[kind]
        answer = server.post(f"/v1/{kind.partition(' ')[0]}", json=body).json()
        return [{**each, "id": None} for each in answer["choices"]], answer.get("prompt_logprobs")

    usual = ask()
    server.llm.behaviour.make_prompt_position = make
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask)
        try:
            assert begun.wait(60)
            assert server.get("/health", timeout=10).status_code == 200
        finally:
            go_on.set()
        assert asked.result() == usual
