"""A worker's steps: from the executor's messages to the runner, and its results back."""

from collections import deque
from typing import TYPE_CHECKING, Protocol

from pagelet.engine.executor.messages import (
    FromWorker,
    StepResult,
    ToWorker,
    WorkerMasks,
    WorkerStep,
    WorkerTokens,
)
from pagelet.engine.executor.progress import IDLE, Progress
from pagelet.engine.step import TokenMasks

if TYPE_CHECKING:
    from pagelet.engine.runner.model_runner import ModelRunner
    from pagelet.engine.runner.results import Launched

_LAUNCHED = 2
"""Steps on the device at once: one that runs, and one that is queued behind it."""


class Link(Protocol):
    """The way to the executor and back."""

    def send(self, message: FromWorker) -> None: ...

    def receive(self) -> ToWorker: ...

    def has_message(self) -> bool: ...


class StepLoop:
    """Runs steps in the order in which they come. On a device that computes by itself the next step
    is launched, if it is known, before the last one's results are waited for."""

    def __init__(
        self, runner: "ModelRunner", link: Link, progress: Progress, *, reports: bool
    ) -> None:
        """`reports` says whether this rank tells the executor what a step brought."""
        self._runner = runner
        self._link = link
        self._progress = progress
        self._reports = reports
        self._launched: deque[Launched] = deque()

    def run(self) -> None:
        """Until the executor closes the link. Raises what a step raises."""
        most = _LAUNCHED if self._runner.asynchronous else 1
        while True:
            if len(self._launched) == most or (self._launched and not self._link.has_message()):
                self._finish()
                continue
            try:
                with self._progress.being(IDLE):
                    message = self._link.receive()
            except EOFError:
                return
            match message:
                case WorkerStep(plan):
                    self._launched.append(self._runner.launch(plan, self._receive_masks))
                case WorkerTokens(request_ids, positions, token_ids):
                    self._runner.take_tokens(request_ids, positions, token_ids)
                case WorkerMasks():
                    raise AssertionError("masks without a plan that waits for them")

    def _finish(self) -> None:
        output = self._launched.popleft().result()
        if self._reports:
            self._link.send(StepResult(output))

    def _receive_masks(self) -> TokenMasks:
        """Of the plan that was the last message; they are made of the results of all before it."""
        while self._launched:
            self._finish()
        message = self._link.receive()
        assert isinstance(message, WorkerMasks), "masks follow their plan at once"
        return message.masks
