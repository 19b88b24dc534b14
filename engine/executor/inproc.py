"""The executor of one rank: a thread of this process."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from pagelet.engine.errors import ExecutorFailed
from pagelet.engine.runner.model_runner import ModelRunner
from pagelet.engine.runner.results import Launched
from pagelet.engine.step import RunnerOutput, SchedulerOutput, TokenMasks


class InprocExecutor:
    """Implements `Executor`. The thread runs steps one after another; torch's operations leave the
    interpreter to the scheduler's thread meanwhile. Where a device runs them, the thread only
    launches steps, and another one waits for their results: the device always has the next step
    queued."""

    def __init__(self, make_runner: Callable[[], ModelRunner]) -> None:
        """Builds the runner in the thread that will use it. Raises what `make_runner` raises."""
        self._thread = ThreadPoolExecutor(1, "model-runner")
        self._collector = ThreadPoolExecutor(1, "model-results")
        self._failure: Exception | None = None
        try:
            self._runner = self._thread.submit(make_runner).result()
        except BaseException:
            self._thread.shutdown(cancel_futures=True)
            raise
        self.info = self._runner.info
        self.layout = self._runner.layout
        self.num_blocks = self._runner.num_blocks

    def execute(
        self, plan: SchedulerOutput, masks: Future[TokenMasks] | None = None
    ) -> Future[RunnerOutput]:
        """See `Executor`. The future of a step that raised, and those of all later ones, fail with
        `ExecutorFailed`."""
        wait = None if masks is None else masks.result
        if not self._runner.asynchronous:
            return self._thread.submit(self._step, plan, wait)
        launched = self._thread.submit(self._launch, plan, wait)
        return self._collector.submit(self._collect, plan, launched)

    def check(self) -> None:
        """See `Executor`; whatever ends the thread's steps is in their futures."""

    def close(self) -> None:
        """See `Executor`."""
        self._thread.shutdown(cancel_futures=True)
        self._collector.shutdown(cancel_futures=True)

    def _step(self, plan: SchedulerOutput, masks: Callable[[], TokenMasks] | None) -> RunnerOutput:
        with self._failing(plan):
            return self._sound_runner().launch(plan, masks).result()

    def _launch(self, plan: SchedulerOutput, masks: Callable[[], TokenMasks] | None) -> Launched:
        with self._failing(plan):
            return self._sound_runner().launch(plan, masks)

    def _sound_runner(self) -> ModelRunner:
        """Raises what an earlier step failed with."""
        if self._failure is not None:
            raise self._failure
        return self._runner

    def _collect(self, plan: SchedulerOutput, launched: Future[Launched]) -> RunnerOutput:
        step = launched.result()
        with self._failing(plan):
            return step.result()

    @contextlib.contextmanager
    def _failing(self, plan: SchedulerOutput) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # The state rows may be half updated: nothing later could be trusted.
            self._failure = self._failure or error
            raise ExecutorFailed(f"step {plan.step} failed: {self._failure!r}") from error
