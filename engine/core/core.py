"""The engine core: scheduler and executor, stepped in turn."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from pagelet.engine.core.constrained import ConstrainedRequests
from pagelet.engine.errors import ConfigurationError
from pagelet.engine.executor.base import Executor
from pagelet.engine.kv.manager import KVCacheManager
from pagelet.engine.scheduler.budget import StepBudget
from pagelet.engine.scheduler.scheduler import Scheduler
from pagelet.engine.scheduler.speed import MeasuredSpeed
from pagelet.engine.speculation.speculation import Speculation
from pagelet.engine.step import RunnerOutput, SchedulerOutput, TokenMasks
from pagelet.engine.structured.answer import ConstrainedAnswer
from pagelet.engine.structured.backend import GrammarError, Matcher
from pagelet.engine.structured.store import GrammarStore
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.engine import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulerStats,
)
from pagelet.protocol.kv_events import KVEvent
from pagelet.protocol.sizes import format_bytes
from pagelet.protocol.structured import Grammar

_STEPS_IN_FLIGHT = 2
_CPU_STEP_SECONDS = 0.1
"""Default bound of a step on a CPU, where a long prompt takes seconds."""


class _InFlight:
    """A step that the executor has, and when it took how long."""

    __slots__ = ("began", "ended", "follows", "future", "masks", "plan", "waited")

    def __init__(
        self, plan: SchedulerOutput, executor: Executor, follows: bool, waited: bool
    ) -> None:
        self.plan = plan
        self.follows = follows
        """Whether it was planned as soon as could be after the step before."""
        self.waited = waited
        """Whether that was only when the tokens of the step before were known, for drafts."""
        self.began = time.monotonic()
        self.ended = 0.0
        """0.0 for a moment after the result is there."""
        self.masks: Future[TokenMasks] | None = Future() if plan.constrained else None
        """To be fulfilled when all steps before this one have ended."""
        self.future = future = executor.execute(plan, self.masks)
        future.add_done_callback(self._end)  # called where the step ran, not when it is noticed

    def _end(self, _: Future[RunnerOutput]) -> None:
        self.ended = time.monotonic()


class EngineCore:
    """One engine without any I/O of its own: requests go in, `step` brings outputs.

    With asynchronous scheduling two steps are in flight, so that the executor starts the next one
    while this thread still handles the results of the last; with a pipeline one for each stage.
    """

    def __init__(
        self,
        options: EngineOptions,
        executor: Executor,
        max_model_len: int,
        grammars: GrammarStore | None = None,
    ) -> None:
        """Raises `ConfigurationError` if the KV cache cannot hold one request of `max_model_len`
        tokens. Without `grammars` no request may have one."""
        cache, scheduler = options.cache, options.scheduler
        self.executor = executor
        self.kv = KVCacheManager(
            executor.layout,
            executor.num_blocks,
            cache.block_size,
            cache.enable_prefix_caching,
            record_events=options.kv_events.endpoint is not None,
        )
        self._check_room(max_model_len, scheduler.max_num_batched_tokens)
        target = scheduler.max_step_seconds
        if target is None and executor.info.device == "cpu":
            target = _CPU_STEP_SECONDS
        self.max_step_seconds = target
        self._budget = StepBudget(scheduler.max_num_batched_tokens, target)
        self._stages = options.parallel.pipeline_parallel_size if scheduler.async_scheduling else 1
        wanted = options.speculation
        self._speculation = None if wanted is None else Speculation(wanted)
        self.scheduler = Scheduler(
            scheduler,
            self.kv,
            max_model_len,
            self._budget,
            self._stages,
            self._speculation,
            max_adapters=options.lora.max_loras if options.lora.enabled else None,
        )
        self.max_model_len = max_model_len
        depth = max(_STEPS_IN_FLIGHT, self._stages)
        self._depth = depth if scheduler.async_scheduling else 1
        self._in_flight: deque[_InFlight] = deque()
        self._last_ended = 0.0
        self._goes_on = False
        """Whether requests ran on after the last step."""
        self._speed = MeasuredSpeed()
        self._rejected: list[EngineCoreOutput] = []
        self.on_wake: Callable[[], None] = lambda: None
        """Called, from another thread, when there is work where there was none."""
        self._constrained = ConstrainedRequests(grammars, lambda: self.on_wake())

    def _check_room(self, max_model_len: int, step_tokens: int) -> None:
        needed = self.kv.blocks_needed(max_model_len, step_tokens)
        usable = self.kv.pool.num_usable
        if needed > usable:
            fits = max_model_len * usable // needed // self.kv.block_size * self.kv.block_size
            block = self.kv.layout.block_bytes
            raise ConfigurationError(
                f"one request of max_model_len {max_model_len} tokens needs {needed} KV blocks "
                f"({format_bytes(needed * block)}) but only {usable} "
                f"({format_bytes(usable * block)}) are there: lower --max-model-len to {fits} "
                f"or give --kv-cache-memory {(needed + 1) * block} bytes"
            )

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return (
            bool(self._in_flight or self._rejected)
            or self.scheduler.has_unfinished
            or self._constrained.has_compiled
        )

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self.scheduler.requests) + len(self._constrained)

    @property
    def step_began(self) -> float:
        """When the oldest step in flight was handed to the executor; 0.0 if there is none."""
        return self._in_flight[0].began if self._in_flight else 0.0

    def add(self, request: EngineCoreRequest) -> None:
        """Takes in a request."""
        if request.structured is not None:
            self._constrained.add(request)
            return
        self._schedule(request, None)

    def _schedule(self, request: EngineCoreRequest, constraint: ConstrainedAnswer | None) -> None:
        rejected = self.scheduler.add(request, constraint)
        if rejected is not None:
            self._rejected.append(rejected)

    def compile(self, grammar: Grammar) -> Future[Matcher]:
        """Begins to compile a grammar; requests that have it need then not wait. Fails with
        `GrammarError`."""
        return self._constrained.store.compile(grammar)

    def _take_compiled(self) -> None:
        """Lets requests run whose grammars have been compiled."""
        for request, outcome in self._constrained.take_compiled():
            if isinstance(outcome, GrammarError):
                self._rejected.append(
                    EngineCoreOutput(
                        request.request_id, [], "error", error=str(outcome), request_fault=True
                    )
                )
            elif outcome.finished:  # by tokens that another engine generated
                self._rejected.append(
                    EngineCoreOutput(request.request_id, [], "stop", ends_in_text=True)
                )
            else:
                self._schedule(request, outcome)

    def abort(self, request_ids: Sequence[int]) -> None:
        """Ends requests without any further output."""
        self.scheduler.abort(request_ids)
        self._constrained.abort(request_ids)

    def abort_all(self) -> None:
        """Ends all requests, as when nobody is left to hear of them."""
        self.scheduler.abort(list(self.scheduler.requests))
        self._constrained.abort_all()

    def fill(self) -> None:
        """Hands steps to the executor until enough are in flight."""
        if self._constrained.has_compiled:
            self._take_compiled()
        while len(self._in_flight) < self._depth:
            if self._in_flight and self.scheduler.awaits_tokens:
                return
            follows = bool(self._in_flight) or self._goes_on
            plan = self.scheduler.schedule()
            if plan is None:
                return
            waited = self._speculation is not None and self._speculation.take_waits()
            self._in_flight.append(_InFlight(plan, self.executor, follows, waited))
            # A pipeline's steps draw for requests of which no token is on its way.
            if len(self._in_flight) == 1 or self._stages > 1:
                self._give_masks(self._in_flight[-1])

    def _give_masks(self, step: _InFlight) -> None:
        """Tells a step which tokens it may draw, as all tokens that it builds upon are known."""
        if (masks := step.masks) is None or masks.done():
            return
        allowed, stuck = self._constrained.masks(step.plan, self.scheduler.requests)
        masks.set_result(allowed)
        for request in stuck:
            assert request.constraint is not None
            self._rejected.append(self.scheduler.fault(request, request.constraint.error))
        self.scheduler.abort([request.request_id for request in stuck])

    def step(self) -> EngineCoreOutputs:
        """Waits for the oldest step in flight and returns what it brought. Raises what the executor
        raises when a worker died."""
        self.fill()
        outputs, self._rejected = self._rejected, []
        num_tokens = 0
        if self._in_flight:
            step = self._in_flight[0]
            result = step.future.result()
            self._in_flight.popleft()
            self._observe(step)
            outputs += self.scheduler.update(step.plan, result)
            self._goes_on = bool(self.scheduler.running)
            if self._in_flight:
                self._give_masks(self._in_flight[0])
            num_tokens = step.plan.num_tokens
        stats = self._take_stats()
        stats.num_scheduled_tokens = num_tokens
        return EngineCoreOutputs(time.monotonic(), outputs, stats)

    def _observe(self, step: _InFlight) -> None:
        counts = [len(entry.draft_token_ids) for entry in step.plan.scheduled]
        decodes = sum(entry.num_tokens == 1 for entry in step.plan.scheduled)
        decodes, drafts = decodes + sum(count > 0 for count in counts), sum(counts)
        prompt_tokens = step.plan.num_tokens - decodes - drafts
        # With two in flight a step begins to run when the one before it ends.
        ended = step.ended or time.monotonic()
        seconds = ended - max(step.began, self._last_ended)
        self._budget.observe(prompt_tokens, decodes, seconds)
        self._speed.observe(prompt_tokens, decodes, seconds)
        guessed = step.waited or not drafts  # what grammars force alone tells nothing of guesses
        if self._speculation is not None and step.follows and not prompt_tokens and guessed:
            drafts = drafts or sum(entry.num_proposals for entry in step.plan.scheduled)
            self._speculation.times.observe(decodes, drafts, step.waited, ended - self._last_ended)
        self._last_ended = ended

    def _take_stats(self) -> SchedulerStats:
        stats = self.scheduler.take_stats()
        stats.num_waiting += len(self._constrained)
        stats.num_waiting_deferred += len(self._constrained)
        if adapters := self._constrained.adapters:
            stats.waiting_adapters = sorted(adapters.union(stats.waiting_adapters))
        step_tokens = self._budget.prompt_tokens()
        stats.prefill_tokens_per_second = self._speed.prefill_tokens_per_second(step_tokens)
        stats.decode_step_seconds = self._speed.decode_step_seconds
        return stats

    def idle_stats(self) -> EngineCoreOutputs:
        """The state without a step."""
        return EngineCoreOutputs(time.monotonic(), [], self._take_stats())

    def take_kv_events(self) -> list[KVEvent]:
        """What the prefix cache gained and lost since the last call, if it is recorded."""
        return self.kv.pool.take_events()

    def close(self) -> None:
        """Stops the executor."""
        for step in self._in_flight:
            if step.masks is not None:
                step.masks.cancel()  # the step waits for them, and the executor for the step
        self.executor.close()
        self._constrained.close()
