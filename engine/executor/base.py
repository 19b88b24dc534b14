"""The executor: where the model runs, in this process or in worker processes."""

from concurrent.futures import Future
from typing import Protocol

from pagelet.engine.kv.spec import KVLayout
from pagelet.engine.step import RunnerInfo, RunnerOutput, SchedulerOutput, TokenMasks


class Executor(Protocol):
    """Runs steps in the order given. One interface for the real runner, for worker processes and
    for the simulated runner."""

    info: RunnerInfo
    layout: KVLayout
    num_blocks: int
    """Blocks that fit, the null block (id 0) included."""

    def execute(
        self, plan: SchedulerOutput, masks: Future[TokenMasks] | None = None
    ) -> Future[RunnerOutput]:
        """Queues a step; several may be in flight. The future fails with `ExecutorFailed` if a
        worker died or hangs.

        `masks` is given, and will be fulfilled once the step before has ended, if the plan has
        `constrained` requests."""
        ...

    def check(self) -> None:
        """Raises `ExecutorFailed` if a worker died or hangs, also where no step is in flight."""
        ...

    def close(self) -> None:
        """Stops the workers; no process is left behind."""
        ...
