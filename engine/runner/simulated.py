"""A simulated runner: the real scheduler, KV cache and outputs over a forward pass that is only a
time model and reproducible tokens. It measures the host's own cost, and stands in for many
replicas where a router or an autoscaler is studied. Free of torch.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np
import numpy.typing as npt

from pagelet.engine.kv.spec import KVLayout, make_layout
from pagelet.engine.step import (
    NewRequestData,
    RunnerInfo,
    RunnerOutput,
    SampledToken,
    ScheduledRequest,
    SchedulerOutput,
    TokenMasks,
)
from pagelet.engine.step_time import StepTime
from pagelet.protocol.config import SimulatedRunnerOptions
from pagelet.protocol.engine import TokenLogprobs

_MULTIPLIER = 6364136223846793005
_LOW = 256
_MASK = (1 << 64) - 1


class _Row:
    """What a real runner holds in a state row, as far as the simulated tokens need it."""

    __slots__ = ("forbidden", "last_token", "logprobs", "prompt", "prompt_logprobs", "salt")

    def __init__(self, data: NewRequestData) -> None:
        params = data.params
        self.last_token = data.token_ids[-1]
        self.salt = 0 if params.greedy else (params.seed or 0)
        self.logprobs = params.logprobs
        self.prompt_logprobs = params.prompt_logprobs
        self.prompt: Sequence[int] = (
            data.token_ids[: data.num_prompt_tokens] if params.prompt_logprobs is not None else ()
        )
        self.forbidden = frozenset(data.eos_token_ids)


def simulated_token(last_token: int, position: int, salt: int, vocab_size: int) -> int:
    """The token at `position`, a pure function of the token before it, the position and the seed
    (0 for greedy requests): replayed anywhere, an answer goes on as it would have."""
    mixed = (last_token * _MULTIPLIER + position * 1442695040888963407 + salt) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    low = _LOW if vocab_size > 2 * _LOW else vocab_size // 2
    return low + (mixed >> 33) % (vocab_size - low)


class SimulatedExecutor:
    """Implements `Executor`. With a time model other than zero, steps run in a thread that sleeps,
    so that scheduling overlaps with them as it does with a real device."""

    def __init__(
        self,
        options: SimulatedRunnerOptions,
        vocab_size: int,
        windows: Sequence[int | None] = (None,),
        num_blocks: int = 16384,
    ) -> None:
        self.info = RunnerInfo("simulated", "none", "none", "none", "none: the runner is simulated")
        self.layout: KVLayout = make_layout(windows, page_bytes=1)
        self.num_blocks = num_blocks
        self._step_time = StepTime(**msgspec.structs.asdict(options))
        self._vocab_size = vocab_size
        self._rows: dict[int, _Row] = {}
        timed = self._step_time != StepTime()
        self._thread = ThreadPoolExecutor(1, "simulated-runner") if timed else None

    def execute(
        self, plan: SchedulerOutput, masks: Future[TokenMasks] | None = None
    ) -> Future[RunnerOutput]:
        """See `Executor`."""
        if self._thread is not None:
            return self._thread.submit(self._timed_step, plan, masks)
        future: Future[RunnerOutput] = Future()
        if masks is None:
            future.set_result(self._step(plan, None))
        else:
            masks.add_done_callback(lambda masks: _fulfil(future, self._step, plan, masks))
        return future

    def check(self) -> None:
        """See `Executor`; nothing can have happened."""

    def close(self) -> None:
        """See `Executor`."""
        if self._thread is not None:
            self._thread.shutdown()

    def _timed_step(self, plan: SchedulerOutput, masks: Future[TokenMasks] | None) -> RunnerOutput:
        begun = time.monotonic()
        result = self._step(plan, masks)
        context = sum(s.num_computed_tokens + s.num_tokens for s in plan.scheduled)
        seconds = self._step_time.seconds(plan.num_tokens, context)
        time.sleep(max(0.0, begun + seconds - time.monotonic()))
        return result

    def _step(self, plan: SchedulerOutput, masks: Future[TokenMasks] | None) -> RunnerOutput:
        rows = self._rows
        allowed = {} if masks is None else self._allowed_tokens(plan, masks.result())
        for request_id in plan.dropped_request_ids:
            rows.pop(request_id, None)
        for data in plan.new_requests:
            rows[data.request_id] = _Row(data)
        sampled = []
        for index, entry in enumerate(plan.scheduled):
            row = rows[entry.request_id]
            end = entry.num_computed_tokens + entry.num_tokens
            result = SampledToken(entry.request_id, [])
            if entry.samples:
                if entry.draft_token_ids:
                    self._verify(row, entry, allowed.get(index), result)
                else:
                    choices = allowed.get(index)
                    self._draw(row, end, None if choices is None else choices[0], result)
            if row.prompt_logprobs is not None:
                result.prompt_logprobs = [
                    self._logprobs(token, row.prompt_logprobs)
                    for token in row.prompt[entry.num_computed_tokens + 1 : end + 1]
                ]
            sampled.append(result)
        return RunnerOutput(plan.step, sampled)

    def _verify(
        self,
        row: _Row,
        entry: ScheduledRequest,
        allowed: Sequence[npt.NDArray[np.intp]] | None,
        result: SampledToken,
    ) -> None:
        """Tokens up to the first that is not the draft in its place; `allowed` are those that may
        be drawn there, after none, one, ... of the drafts."""
        position = entry.num_computed_tokens + entry.num_tokens - len(entry.draft_token_ids)
        for place, draft in enumerate([*entry.draft_token_ids, None]):
            choices = None if allowed is None else allowed[place]
            if choices is not None and not len(choices):
                return  # the next step comes to it again
            if self._draw(row, position + place, choices, result) != draft:
                return

    def _draw(
        self,
        row: _Row,
        position: int,
        choices: npt.NDArray[np.intp] | None,
        result: SampledToken,
    ) -> int:
        """Adds the token at a position to `result`; one of `choices`, if they are given."""
        token = simulated_token(row.last_token, position, row.salt, self._vocab_size)
        if choices is not None:
            token = _choose(choices, token, row.forbidden)
        else:
            while token in row.forbidden:  # answers are as long as they were asked to be
                token = (token + 1) % self._vocab_size
        row.last_token = token
        result.token_ids.append(token)
        if row.logprobs is not None:
            result.logprobs = [*(result.logprobs or ()), self._logprobs(token, row.logprobs)]
        return token

    def _allowed_tokens(
        self, plan: SchedulerOutput, masks: TokenMasks
    ) -> dict[int, list[npt.NDArray[np.intp]]]:
        """The tokens that each constrained request may draw, by its index in the plan: without
        drafts, and after each of them."""
        counts = [1 + len(plan.scheduled[index].draft_token_ids) for index in plan.constrained]
        octets = np.frombuffer(masks.words, np.uint8).reshape(sum(counts), -1)
        bits = np.unpackbits(octets, axis=1, bitorder="little")[:, : self._vocab_size]
        rows = iter(bits)
        return {
            index: [np.flatnonzero(row) for row in itertools.islice(rows, count)]
            for index, count in zip(plan.constrained, counts, strict=True)
        }

    def _logprobs(self, token: int, count: int) -> TokenLogprobs:
        """As of a distribution that is sure of the token and sees all others alike."""
        others = [other for other in range(count + 1) if other != token][: max(0, count - 1)]
        top = [token, *others][:count]
        logprobs = [0.0 if candidate == token else -9999.0 for candidate in (token, *top)]
        return TokenLogprobs([token, *top], logprobs, 1)


def _choose(allowed: npt.NDArray[np.intp], token: int, ends: frozenset[int]) -> int:
    """An allowed token that depends on `token` alone; one that ends the answer only if it must."""
    going_on = allowed[~np.isin(allowed, list(ends))]
    candidates = going_on if len(going_on) else allowed
    return int(candidates[token % len(candidates)])


def _fulfil(
    future: Future[RunnerOutput],
    step: Callable[[SchedulerOutput, Future[TokenMasks]], RunnerOutput],
    plan: SchedulerOutput,
    masks: Future[TokenMasks],
) -> None:
    try:
        future.set_result(step(plan, masks))
    except BaseException as error:
        future.set_exception(error)
