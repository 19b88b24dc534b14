"""A worker's loop on a runner and a link that write down what happened in which order."""

import itertools
from collections import deque
from typing import Any

import pytest

from pagelet.engine.executor.messages import (
    StepResult,
    WorkerMasks,
    WorkerStep,
    WorkerTokens,
)
from pagelet.engine.executor.progress import Progress
from pagelet.engine.executor.step_loop import StepLoop
from pagelet.engine.step import RunnerOutput, SchedulerOutput, TokenMasks


class Script:
    """The executor's end and the runner in one. `messages` are there from the start, but those
    after a number come only once so many results have been sent."""

    def __init__(self, messages: list[Any], *, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.messages = deque(messages)
        self.log: list[str] = []
        self.sent = 0

    def has_message(self) -> bool:
        if not self.messages:
            return False  # the executor closes when nothing is on its way any more
        head = self.messages[0]
        return not isinstance(head, int) or self.sent >= head

    def receive(self) -> Any:
        while self.messages and isinstance(self.messages[0], int):
            assert self.sent >= self.messages.popleft(), "the executor would wait for ever"
        if not self.messages:
            raise EOFError
        return self.messages.popleft()

    def send(self, message: Any) -> None:
        assert isinstance(message, StepResult)
        self.sent += 1
        self.log.append(f"result {message.output.step}")

    def launch(self, plan: SchedulerOutput, masks: Any) -> Any:
        if plan.constrained:
            assert isinstance(masks(), TokenMasks)
            self.log.append("masks")
        self.log.append(f"launch {plan.step}")
        script, step = self, plan.step

        class Launched:
            def result(self) -> RunnerOutput:
                script.log.append(f"wait {step}")
                return RunnerOutput(step, [])

        return Launched()

    def take_tokens(self, *tokens: Any) -> None:
        self.log.append("tokens")

    def run(self, *, reports: bool = True) -> list[str]:
        StepLoop(self, self, Progress(), reports=reports).run()  # type: ignore[arg-type]
        return self.log


def plan(step: int, constrained: bool = False) -> WorkerStep:
    return WorkerStep(SchedulerOutput(step, [], [], [], 0, [0] if constrained else []))


MASKS = WorkerMasks(TokenMasks(b""))


def test_on_a_device_a_step_is_launched_before_the_last_one_is_waited_for() -> None:
    log = Script([plan(1), plan(2), 1, plan(3), 2, plan(4)], asynchronous=True).run()
    assert [entry for entry in log if "result" not in entry] == [
        *("launch 1", "launch 2", "wait 1", "launch 3", "wait 2", "launch 4", "wait 3", "wait 4"),
    ]


def test_a_step_without_a_next_one_is_not_kept_waiting() -> None:
    log = Script([plan(1), 1, plan(2), 2, plan(3)], asynchronous=True).run()
    assert [entry for entry in log if "wait" not in entry] == [
        f"{what} {step}" for step in (1, 2, 3) for what in ("launch", "result")
    ]


def test_on_a_cpu_every_step_is_told_at_once() -> None:
    log = Script([plan(1), plan(2), plan(3)], asynchronous=False).run()
    assert log == [f"{what} {step}" for step in (1, 2, 3) for what in ("launch", "wait", "result")]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_masks_come_after_the_results_that_they_are_made_of(asynchronous: bool) -> None:
    messages = [plan(1), plan(2, constrained=True), 1, MASKS, plan(3)]
    log = Script(messages, asynchronous=asynchronous).run()
    order = ["result 1", "masks", "launch 2", "result 2", "result 3"]
    assert sorted(order, key=log.index) == order
    assert all(log.index(a) < log.index(b) for a, b in itertools.pairwise(order))


def test_a_rank_that_does_not_report_waits_all_the_same() -> None:
    script = Script([plan(1), WorkerTokens([], [], []), plan(2)], asynchronous=True)
    log = script.run(reports=False)
    assert script.sent == 0
    assert sorted(log) == ["launch 1", "launch 2", "tokens", "wait 1", "wait 2"]
