"""Changes of the file while requests run: none fails, and every answer is what it always was."""

import functools
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.local import Local
from support.processes import wait_for
from support.services import SERVICE

UPDATES = 5
CLIENTS = 4
TOKENS = 60


OTHER = SERVICE.format(name="other") + "  replicas: 0\n"


def service(update: int) -> str:
    """Differs in what a replica is started with."""
    return SERVICE.format(name="sim").replace("engine:", f"engine:\n    maxQueue: {100 + update}")


class Load:
    """Clients that ask all the time, in turns streaming and not."""

    def __init__(self, client: openai.OpenAI) -> None:
        self.answers: list[str] = []
        self.failures: list[Exception] = []
        self._client = client
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        streams = bool(number % 2)
        while not self._end.is_set():
            try:
                self.answers.append("".join(self._ask(streams)))
            except (openai.OpenAIError, AssertionError) as error:
                self.failures.append(error)
            streams = not streams

    def _ask(self, streams: bool) -> Iterator[str]:
        arguments: dict[str, Any] = {
            "model": "sim",
            "prompt": "Once upon a time",
            "max_tokens": TOKENS,
            "seed": 7,
        }
        completions = self._client.completions
        if not streams:
            answer = completions.create(**arguments, extra_body={"ignore_eos": True})
            assert answer.usage.completion_tokens == TOKENS
            yield answer.choices[0].text
            return
        reason = None
        for chunk in completions.create(**arguments, stream=True, extra_body={"ignore_eos": True}):
            yield chunk.choices[0].text
            reason = chunk.choices[0].finish_reason or reason
        assert reason == "length"


@pytest.mark.timeout(900)  # six starts of a server, on a machine that may be busy
def test_no_request_fails_in_rolling_updates(up: Local) -> None:
    up.write(service(0))
    up.start().wait_phases("ready")
    seen = set(up.phases())
    with up.client() as client, Load(client) as load:
        for update in range(1, UPDATES + 1):
            other = [OTHER] if update % 2 else []  # it comes and goes, and the router with it
            up.write(service(update), *other)
            # While new replicas get up and old ones drain, one is always ready.
            while not is_updated(up, seen):
                assert "ready" in up.phases().values()
                assert not load.failures
                time.sleep(0.1)
            seen |= set(up.phases())
            enough, models = len(load.answers) + CLIENTS, {"sim", *(["other"] if other else [])}
            wait_for(functools.partial(have_come, load, enough))
            wait_for(functools.partial(are_served, client, models))
    assert load.failures == []
    assert len(set(load.answers)) == 1
    assert len(seen) == UPDATES + 1


def have_come(load: Load, answers: int) -> bool:
    return len(load.answers) >= answers


def are_served(client: openai.OpenAI, names: set[str]) -> bool:
    return {model.id for model in client.models.list()} == names


def is_updated(up: Local, old: set[str]) -> bool:
    """Whether a new replica, and it alone, is there."""
    phases = up.phases()
    return list(phases.values()) == ["ready"] and not old & set(phases)
