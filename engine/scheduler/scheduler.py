"""The scheduler: which tokens of which requests the next step computes.

There is no prefill or decode phase (the idea is vLLM V1's). Each request's `num_computed_tokens`
chases the number of its tokens under one token budget a step: running requests first, then waiting
ones. Chunked prefill, prefix hits and preemption by recompute all follow from that.

A prefill takes what the decodes leave of the budget, in the order of arrival; but a long one leaves
half of it to requests that need much less, so that they need not wait for it to end.

A waiting request whose next block is just being computed by a running one stands aside until it
can share it: of many prompts with one prefix that arrive together, the prefix is computed once.

With asynchronous scheduling `schedule` is called again before `update` brings the last step's
tokens: a sampled token that is still on its way counts as known, since the runner has it. Not so in
a pipeline, whose first stage learns late what the last one drew: there a request waits for its own
token while steps of other requests run (micro-batches, GPipe, arXiv 1811.06965), and each step
takes its share of the decodes, so that they fill the pipeline. Chunks of a prompt need no token and
follow one another at once.

Guesses of speculative decoding can only follow tokens whose values are here: `awaits_tokens` says
when a step planned at once would miss some. Tokens that a grammar forces need no wait. Wrong
guesses are rolled back: `num_computed_tokens` falls back, and the blocks stay.
"""

import itertools
import time
from collections.abc import Iterable, Sequence

from pagelet.engine.kv.manager import KVCacheManager
from pagelet.engine.scheduler.adapters import AdapterUse
from pagelet.engine.scheduler.budget import StepBudget
from pagelet.engine.scheduler.drafts import plan_drafts
from pagelet.engine.scheduler.planned_step import PlannedStep
from pagelet.engine.scheduler.queue import FCFSQueue, PriorityQueue, WaitingQueue
from pagelet.engine.scheduler.request import Request, Status
from pagelet.engine.speculation.speculation import Speculation
from pagelet.engine.step import (
    MAX_DRAFT_TOKENS,
    NewRequestData,
    RunnerOutput,
    SampledToken,
    ScheduledRequest,
    SchedulerOutput,
)
from pagelet.engine.structured.answer import ConstrainedAnswer
from pagelet.protocol.config import SchedulerOptions
from pagelet.protocol.engine import (
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    SchedulerStats,
)

_LOOK_AHEAD = 32
"""Waiting requests that a long prompt looks at for shorter ones."""


class Scheduler:
    """Owns all requests of one engine core."""

    def __init__(
        self,
        options: SchedulerOptions,
        kv: KVCacheManager,
        max_model_len: int,
        budget: StepBudget | None = None,
        num_stages: int = 1,
        speculation: Speculation | None = None,
        max_adapters: int | None = None,
    ) -> None:
        """With several pipeline stages so many steps are in flight that each works on one. The
        running requests have at most `max_adapters` adapters all together."""
        self.options = options
        self.budget = budget or StepBudget(options.max_num_batched_tokens, None)
        self.speculation = speculation
        self.kv = kv
        self.max_model_len = max_model_len
        self.adapters = AdapterUse(max_adapters)
        self.requests: dict[int, Request] = {}
        self.running: list[Request] = []
        self.waiting: WaitingQueue = FCFSQueue() if options.policy == "fcfs" else PriorityQueue()
        self._stages = num_stages
        self._by_priority = options.policy == "priority"
        self._dropped: list[int] = []
        self._prefilling: dict[bytes, Request] = {}
        """Blocks of prompts that are being computed, and by whom; not published yet."""
        self._arrivals = 0
        self._step = 0
        self._num_deferred = 0
        self._num_constrained = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._num_preemptions = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.requests)

    def add(
        self, core: EngineCoreRequest, constraint: ConstrainedAnswer | None = None
    ) -> EngineCoreOutput | None:
        """Takes in a request; a request that cannot ever run is answered with its error at once.
        `constraint` is its place in the grammar that its answer must match."""
        request = Request(core, self.max_model_len, self.kv.block_size, self._arrivals)
        self._arrivals += 1
        computed = request.max_total_tokens - (request.pooling is not None)
        needed = self.kv.blocks_needed(computed, self.options.max_num_batched_tokens)
        if needed > self.kv.pool.num_usable:
            return EngineCoreOutput(
                core.request_id,
                [],
                "error",
                error=f"prompt and answer of up to {request.max_total_tokens} tokens need {needed} "
                f"KV blocks but there are {self.kv.pool.num_usable}: lower max_tokens",
            )
        if constraint is not None:
            request.constraint = constraint
            self._num_constrained += 1
        if self.speculation is not None:
            self.speculation.begin(request)
        self.requests[core.request_id] = request
        self.adapters.begin(request)
        self.waiting.push(request)
        return None

    def abort(self, request_ids: Iterable[int]) -> list[Request]:
        """Ends requests; blocks are free at once, and full ones stay cached. Unknown ids (perhaps
        just finished) are ignored."""
        aborted = [r for r in map(self.requests.get, request_ids) if r is not None]
        for request in aborted:
            if request.status is Status.RUNNING:
                self.running.remove(request)
            else:
                self.waiting.remove(request)
            self._forget(request)
        return aborted

    def _forget(self, request: Request) -> None:
        self._stop_prefilling(request, 0)
        self.kv.free(request)
        del self.requests[request.request_id]
        self.adapters.end(request)
        self._num_constrained -= request.constraint is not None
        if request.status is Status.RUNNING:
            self._dropped.append(request.request_id)

    # Planning

    @property
    def awaits_tokens(self) -> bool:
        """Whether a step planned now, before tokens in flight are known, would miss drafts that
        could follow them."""
        speculation, num_running = self.speculation, len(self.running)
        return (
            speculation is not None
            and self._stages == 1
            and any(
                request.num_pending_tokens and speculation.is_active(request, num_running)
                for request in self.running
            )
        )

    def schedule(self) -> SchedulerOutput | None:
        """Plans a step; None if there is nothing to compute (until a step in flight ends)."""
        if self._by_priority:
            self.running.sort(key=lambda request: (request.priority, request.order))
        step = PlannedStep(self.options.max_num_batched_tokens, self.budget.prompt_tokens())
        preemptions = self._num_preemptions
        self._schedule_running(step)
        if self._num_preemptions == preemptions:
            self._schedule_waiting(step)
            self._top_up(step)
        if not step.scheduled:
            return None
        if self.speculation is not None and self.speculation.uses_model:
            self._ask_for_proposals(step, self.speculation)
        self._step += 1
        dropped, self._dropped = self._dropped, []
        total = self.options.max_num_batched_tokens - step.tokens_left
        constrained = self._constrained(step.scheduled) if self._num_constrained else []
        return SchedulerOutput(self._step, step.new, step.scheduled, dropped, total, constrained)

    def _constrained(self, scheduled: Sequence[ScheduledRequest]) -> list[int]:
        """The entries that draw a token which a grammar constrains."""
        return [
            index
            for index, entry in enumerate(scheduled)
            if entry.samples and self.requests[entry.request_id].constraint is not None
        ]

    def _schedule_running(self, step: PlannedStep) -> None:
        index, needs_blocks = 0, self.kv.needs_blocks
        no_drafts: Sequence[int] = ()
        running = self.running
        # Decodes come first, wherever in the order they stand.
        decodes = sum(
            request.num_target_tokens - request.num_computed_tokens == 1
            and request.num_target_tokens < request.max_total_tokens
            for request in running
        )
        decodes = -(-decodes // self._stages)
        step.prompt_tokens_left = min(step.prompt_tokens_left, step.tokens_left - decodes)
        step.decodes_left = decodes
        # Half of what decodes leave is for prompts, which could else wait for ever.
        step.drafts_left = min((step.tokens_left - decodes) // 2, MAX_DRAFT_TOKENS)
        while index < len(running) and step.tokens_left > 0:
            request = running[index]
            computed = request.num_computed_tokens
            known = len(request.token_ids) + request.num_pending_tokens
            if computed >= known or known >= request.max_total_tokens:
                index += 1  # all is in flight, the last token that was asked for perhaps too
                continue
            tokens = known - computed
            if self._stages > 1 and (
                request.num_pending_tokens or (tokens == 1 and step.decodes_left == 0)
            ):
                index += 1  # it waits for its token, or for the next step
                continue
            is_prompt = tokens > 1
            if is_prompt:
                tokens = self._share(step, request, tokens)
                if tokens <= 0:
                    index += 1
                    continue
            else:
                step.decodes_left -= 1
            gained, drafts = None, no_drafts
            if self.speculation is not None or request.constraint is not None:
                if not is_prompt:
                    drafts = plan_drafts(step, request, self.speculation, len(running))
                ahead = self._tokens_ahead(request, tokens + len(drafts))
                if ahead > tokens and needs_blocks(request, ahead):
                    gained = self.kv.allocate(request, ahead, spare=len(running))
                    if gained is None:
                        drafts = ()
            if gained is None and needs_blocks(request, tokens):
                gained = self.kv.allocate(request, tokens)
                while gained is None:
                    victim = running.pop()
                    self._preempt(victim)
                    if victim is request:
                        break
                    gained = self.kv.allocate(request, tokens)
                if gained is None:
                    break
            entry = ScheduledRequest(
                request.request_id, computed, tokens, computed + tokens == known, gained
            )
            if drafts:
                entry.num_tokens += len(drafts)
                entry.draft_token_ids = drafts
            self._put(step, request, entry, is_prompt=is_prompt)
            index += 1

    def _tokens_ahead(self, request: Request, num_tokens: int) -> int:
        """Tokens to have blocks for: `num_tokens`, and what a draft model may propose after."""
        speculation = self.speculation
        if (
            speculation is not None
            and speculation.uses_model
            and speculation.is_active(request, len(self.running))
        ):
            num_tokens += speculation.options.num_speculative_tokens
        return min(num_tokens, request.max_total_tokens - request.num_computed_tokens)

    def _ask_for_proposals(self, step: PlannedStep, speculation: Speculation) -> None:
        """Has the draft model propose as far as there are blocks to write to."""
        for entry in step.scheduled:
            request = self.requests[entry.request_id]
            most = 1
            if entry.samples:
                end = entry.num_computed_tokens + entry.num_tokens
                room = len(request.blocks[0]) * self.kv.block_size
                most = min(room, request.max_total_tokens - 1) - end
            entry.num_proposals = speculation.num_proposals(request, most, len(self.running))

    @staticmethod
    def _put(
        step: PlannedStep, request: Request, entry: ScheduledRequest, *, is_prompt: bool
    ) -> None:
        """Makes the entry part of the step."""
        step.scheduled.append(entry)
        step.tokens_left -= entry.num_tokens
        if is_prompt:
            step.prompt_tokens_left -= entry.num_tokens
        request.num_computed_tokens = entry.num_computed_tokens + entry.num_tokens
        request.num_inflight += 1
        request.num_pending_tokens += entry.samples

    def _share(self, step: PlannedStep, request: Request, remaining: int) -> int:
        """How many of a prompt's remaining tokens the step takes; the rest of a long one's share is
        for requests that need less than half as many."""
        left = min(step.prompt_tokens_left, step.tokens_left)
        if remaining <= left // 2 or left < 2 * self.kv.block_size:
            return min(remaining, left)
        waiting = itertools.islice(self.waiting, _LOOK_AHEAD)
        if any(len(r.token_ids) <= remaining // 2 for r in waiting) or any(
            1 < r.num_target_tokens - r.num_computed_tokens <= remaining // 2
            for r in self.running
            if r is not request
        ):
            step.shared = True
            return min(remaining, left // 2)
        return min(remaining, left)

    def _top_up(self, step: PlannedStep) -> None:
        """Gives what the others did not take back to the prompts that shared."""
        if not step.shared:
            return
        for entry in step.scheduled:
            left = min(step.prompt_tokens_left, step.tokens_left)
            if left <= 0:
                return
            request = self.requests[entry.request_id]
            more = min(left, len(request.token_ids) - request.num_computed_tokens)
            if entry.samples or more <= 0:
                continue
            if self.kv.needs_blocks(request, more):
                gained = self.kv.allocate(request, more, spare=len(self.running))
                if gained is None:
                    return
                step.add_blocks(entry, gained)
            entry.num_tokens += more
            entry.samples = request.num_computed_tokens + more == len(request.token_ids)
            request.num_computed_tokens += more
            request.num_pending_tokens += entry.samples
            step.tokens_left -= more
            step.prompt_tokens_left -= more

    def _preempt(self, request: Request) -> None:
        """Takes a request's blocks away; it will recompute its tokens, most likely from the blocks
        that it published."""
        self._stop_prefilling(request, 0)
        self.kv.free(request)
        request.status = Status.PREEMPTED
        request.num_computed_tokens = request.num_confirmed_tokens = 0
        self._num_preemptions += 1
        self._dropped.append(request.request_id)
        self.waiting.push_front(request)

    def _schedule_waiting(self, step: PlannedStep) -> None:
        deferred: list[Request] = []
        while (
            self.waiting
            and min(step.prompt_tokens_left, step.tokens_left) > 0
            and len(self.running) < self.options.max_num_seqs
        ):
            request = self.waiting.peek()
            if (
                request.num_inflight
                or request.awaited_block in self._prefilling
                or not self.adapters.may_run(request, self.running)
            ):
                # Preempted in mid-step, so that its last token is still to come; or about to share
                # what another computes; or one adapter too many. Those behind it may go first.
                deferred.append(self.waiting.pop())
                continue
            hit = self.kv.find_hit(request)
            request.awaited_block = self._next_block(request, hit.num_tokens)
            if request.awaited_block in self._prefilling:
                continue
            known = len(request.token_ids)
            remaining = known - hit.num_tokens
            self.waiting.pop()
            tokens = self._share(step, request, remaining)
            # Every running request is about to want a block more; taking their last ones would
            # only preempt this request, or them, soon after.
            if (
                not self._fits(remaining)
                or self.kv.allocate(request, tokens, hit, spare=len(self.running)) is None
            ):
                self.waiting.push_front(request)
                break
            self._admit(request, hit.num_tokens)
            self._start_prefilling(request, hit.num_tokens)
            samples = hit.num_tokens + tokens == known
            entry = ScheduledRequest(request.request_id, hit.num_tokens, tokens, samples)
            step.new.append(
                NewRequestData(
                    request.request_id,
                    list(request.token_ids),
                    request.num_prompt_tokens,
                    request.params,
                    sorted(request.eos_token_ids),
                    [[block.block_id for block in blocks] for blocks in request.blocks],
                    request.pooling,
                    request.lora,
                    self.kv.copies(request, hit),
                )
            )
            self._put(step, request, entry, is_prompt=True)
        self._num_deferred = len(deferred)
        for request in reversed(deferred):
            self.waiting.push_front(request)

    def _next_block(self, request: Request, num_cached: int) -> bytes | None:
        """The hash of the first block that the cache lacks, if it could be shared."""
        if not self.kv.enable_prefix_caching or request.needs_every_state:
            return None
        index = num_cached // self.kv.block_size
        sharable = (len(request.token_ids) - 1) // self.kv.block_size
        return request.block_hashes[index] if index < sharable else None

    def _start_prefilling(self, request: Request, num_cached: int) -> None:
        if self.kv.enable_prefix_caching:
            for block_hash in request.block_hashes[num_cached // self.kv.block_size :]:
                self._prefilling.setdefault(block_hash, request)

    def _stop_prefilling(self, request: Request, first: int, last: int | None = None) -> None:
        """Takes back the announcement of blocks [first, last): published now, or given up."""
        if self._prefilling:
            for block_hash in request.block_hashes[first:last]:
                if self._prefilling.get(block_hash) is request:
                    del self._prefilling[block_hash]

    def _publish(self, request: Request) -> None:
        first = request.num_published_blocks
        self.kv.publish(request)
        self._stop_prefilling(request, first, request.num_published_blocks)

    def _fits(self, num_tokens: int) -> bool:
        """Whether the free blocks hold the whole input, not just its first chunk, after what other
        prefills have still to take: admitting on less is how preemption storms begin
        (vllm-project/vllm#18115)."""
        size = self.kv.block_size
        owed = 0
        for other in self.running:
            if other.num_computed_tokens < len(other.token_ids) - 1:
                held = len(other.blocks[0])
                owed += max(0, -(-len(other.token_ids) // size) - held)
        if not self.running:
            return True  # alone it always fits: `add` has seen to that
        return -(-num_tokens // size) + owed <= self.kv.pool.num_free

    def _admit(self, request: Request, num_cached: int) -> None:
        if request.status is Status.WAITING:
            request.scheduled_time = time.monotonic()
            request.num_cached_tokens = min(num_cached, request.num_prompt_tokens)
            if self.kv.enable_prefix_caching:
                self._prefix_queries += len(request.token_ids)
                self._prefix_hits += num_cached
        request.num_confirmed_tokens = num_cached
        request.status = Status.RUNNING
        self.running.append(request)

    # Results

    def update(self, plan: SchedulerOutput, result: RunnerOutput) -> list[EngineCoreOutput]:
        """Takes in a step's results: appends tokens, publishes blocks, ends requests."""
        outputs: list[EngineCoreOutput] = []
        finished = False
        block_size = self.kv.block_size
        for entry, sampled in zip(plan.scheduled, result.sampled, strict=True):
            request = self.requests.get(entry.request_id)
            if request is None:
                continue  # ended by an earlier step or aborted while this one ran
            request.num_inflight -= 1
            if entry.samples:
                request.num_pending_tokens -= 1
            num_drafts = rejected = 0
            if entry.draft_token_ids:
                num_drafts = len(entry.draft_token_ids)
                rejected = max(0, num_drafts + 1 - len(sampled.token_ids))
            if request.status is Status.RUNNING:
                request.num_computed_tokens -= rejected
                confirmed = entry.num_computed_tokens + entry.num_tokens - rejected
                request.num_confirmed_tokens = confirmed
            else:
                confirmed = 0  # preempted meanwhile: its blocks are gone, its token still counts
            if self.speculation is not None and entry.samples:
                self.speculation.observe(request, num_drafts, num_drafts - rejected)
                if request.drafting is not None:
                    request.drafting.proposed = sampled.draft_token_ids
            if sampled.prompt_logprobs and request.prompt_logprobs is not None:
                self._add_prompt_logprobs(request, entry, sampled)
            if sampled.error is not None:
                outputs.append(
                    EngineCoreOutput(
                        entry.request_id,
                        [],
                        "error",
                        error=sampled.error,
                        request_fault=request.may_forbid_all,
                    )
                )
                self._finish(request)
                finished = True
                continue
            if sampled.token_ids or sampled.pooled is not None:
                output = self._append(request, sampled)
                outputs.append(output)
                if num_drafts and confirmed > len(
                    request.token_ids
                ):  # by drafts after the token that ends it
                    confirmed = request.num_confirmed_tokens = len(request.token_ids)
                if confirmed // block_size > request.num_published_blocks:
                    self._publish(request)
                if output.finish_reason is not None:
                    self._finish(request)
                    finished = True
            elif confirmed // block_size > request.num_published_blocks:
                self._publish(request)
        if finished:
            self.running = [r for r in self.running if r.request_id in self.requests]
        return outputs

    def _finish(self, request: Request) -> None:
        if request.status is Status.PREEMPTED:
            self.waiting.remove(request)
        self._forget(request)

    def _append(self, request: Request, sampled: SampledToken) -> EngineCoreOutput:
        accepted: list[int] = []
        reason: FinishReason | None = None if sampled.pooled is None else "stop"
        stop_reason: int | None = None
        ends_in_text = False
        for token in sampled.token_ids:
            request.token_ids.append(token)
            accepted.append(token)
            if len(request.token_ids) - request.num_prompt_tokens >= request.params.min_tokens:
                if token in request.eos_token_ids:
                    reason = "stop"
                elif token in request.stop_token_ids:
                    reason, stop_reason = "stop", token
            if request.constraint is not None:
                if not request.constraint.accept(token):
                    return self.fault(request, request.constraint.error)
                ends_in_text = reason is None and request.constraint.finished
                reason = "stop" if ends_in_text else reason
            if reason is None and len(request.token_ids) >= request.max_total_tokens:
                reason = "length"
            if reason is not None:
                break
        output = EngineCoreOutput(
            request.request_id,
            accepted,
            reason,
            stop_reason,
            ends_in_text=ends_in_text,
        )
        if sampled.logprobs is not None:
            output.logprobs = sampled.logprobs[: len(accepted)]
        if sampled.pooled is not None:
            output.pooled = sampled.pooled
        if request.num_generated_tokens - request.num_resumed_tokens == len(accepted):
            output.num_cached_tokens = request.num_cached_tokens
            output.scheduled_time = request.scheduled_time
            output.prompt_logprobs = request.prompt_logprobs
        return output

    @staticmethod
    def fault(request: Request, error: str) -> EngineCoreOutput:
        """The end of a request whose grammar cannot be followed further."""
        return EngineCoreOutput(
            request.request_id,
            [],
            "error",
            error=f"structured output: {error}",
            request_fault=True,
        )

    @staticmethod
    def _add_prompt_logprobs(
        request: Request, entry: ScheduledRequest, sampled: SampledToken
    ) -> None:
        """Collects those of new positions; after a preemption earlier ones come again."""
        assert request.prompt_logprobs is not None
        assert sampled.prompt_logprobs is not None
        known = len(request.prompt_logprobs) - 1
        request.prompt_logprobs += sampled.prompt_logprobs[
            max(0, known - entry.num_computed_tokens) :
        ]

    # State

    def take_stats(self) -> SchedulerStats:
        """The present state, and counts since the last call."""
        stats = SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_waiting_deferred=self._num_deferred,
            kv_cache_usage=self.kv.pool.usage,
            prefix_cache_queries=self._prefix_queries,
            prefix_cache_hits=self._prefix_hits,
            num_preemptions=self._num_preemptions,
            step=self._step,
            evicted=self.kv.pool.residency.take(),
            speculation=None if self.speculation is None else self.speculation.take_stats(),
        )
        self._prefix_queries = self._prefix_hits = self._num_preemptions = 0
        if self.adapters.most is not None:
            stats.running_adapters, stats.waiting_adapters = self.adapters.in_use(self.running)
        return stats
