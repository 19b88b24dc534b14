"""Plans written by hand, for tests that drive a runner or an executor without the scheduler."""

import dataclasses
import random
from collections.abc import Sequence

from pagelet.engine.kv.spec import KVLayout
from pagelet.engine.step import NewRequestData, RunnerOutput, ScheduledRequest, SchedulerOutput
from pagelet.protocol.lora import LoraAdapter
from pagelet.protocol.pooling import PoolingParams
from pagelet.protocol.sampling import SamplingParams


@dataclasses.dataclass
class _Request:
    tokens: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    eos_token_ids: list[int]
    pooling: PoolingParams | None
    lora: LoraAdapter | None
    computed: int = 0
    known: int = 0
    """Tokens that exist, those that are still on their way included."""
    tables: list[list[int]] | None = None
    """None while the runner does not hold the request."""


class HandScheduler:
    """Keeps requests and their blocks, which it hands out in random order."""

    def __init__(self, layout: KVLayout, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self.block_size = block_size
        self.requests: dict[int, _Request] = {}
        self._groups = len(layout.groups)
        self._free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self._free)
        self._dropped: list[int] = []
        self._step = 0

    def add(
        self,
        request_id: int,
        prompt: Sequence[int],
        eos_token_ids: Sequence[int] = (),
        pooling: PoolingParams | None = None,
        lora: LoraAdapter | None = None,
        **params: object,
    ) -> None:
        """A new request; greedy unless `params` say otherwise."""
        values = {"temperature": 0.0, "seed": 0, **params}
        self.requests[request_id] = _Request(
            list(prompt), len(prompt), SamplingParams(**values), list(eos_token_ids), pooling, lora
        )
        self.requests[request_id].known = len(prompt)

    def preempt(self, request_id: int) -> None:
        """Takes a request's blocks and its row away; the next plan that has it brings it back."""
        request = self.requests[request_id]
        assert request.known == len(request.tokens), "a token is still on its way"
        for table in request.tables or []:
            self._free += table
        request.tables, request.computed = None, 0
        self._dropped.append(request_id)

    def finish(self, request_id: int) -> list[int]:
        """Ends a request; returns what it generated."""
        self.preempt(request_id)
        request = self.requests.pop(request_id)
        return request.tokens[request.num_prompt_tokens :]

    def plan(self, parts: dict[int, int] | Sequence[int]) -> SchedulerOutput:
        """A step with so many tokens of each request, or with all that each has to compute."""
        new, scheduled = [], []
        for request_id in parts:
            request = self.requests[request_id]
            rest = request.known - request.computed
            count = min(parts[request_id], rest) if isinstance(parts, dict) else rest
            end = request.computed + count
            held = request.tables is not None
            tables = request.tables = request.tables or [[] for _ in range(self._groups)]
            gained = []
            for table in tables:
                missing = -(-end // self.block_size) - len(table)
                gained.append([self._free.pop() for _ in range(missing)])
                table += gained[-1]
            if not held:
                new.append(
                    NewRequestData(
                        request_id,
                        list(request.tokens),
                        request.num_prompt_tokens,
                        request.params,
                        request.eos_token_ids,
                        gained,
                        request.pooling,
                        request.lora,
                    )
                )
            samples = end == request.known
            scheduled.append(
                ScheduledRequest(
                    request_id, request.computed, count, samples, gained if held else None
                )
            )
            request.computed = end
            request.known += samples
        self._step += 1
        dropped, self._dropped = self._dropped, []
        total = sum(entry.num_tokens for entry in scheduled)
        return SchedulerOutput(self._step, new, scheduled, dropped, total)

    def take(self, result: RunnerOutput) -> None:
        """Takes in the tokens of a step."""
        for sampled in result.sampled:
            if sampled.request_id in self.requests:
                self.requests[sampled.request_id].tokens += sampled.token_ids
