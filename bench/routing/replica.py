"""A replica on a virtual clock: the engine's own scheduler and KV cache, with a model of what a
step takes in place of one that computes."""

import dataclasses
from collections.abc import Sequence

from pagelet.bench.routing.traces import Item
from pagelet.engine.kv.manager import KVCacheManager
from pagelet.engine.kv.spec import make_layout
from pagelet.engine.scheduler.request import Request
from pagelet.engine.scheduler.scheduler import Scheduler
from pagelet.engine.step import RunnerOutput, SampledToken, SchedulerOutput
from pagelet.engine.step_time import StepTime
from pagelet.protocol.config import SchedulerOptions
from pagelet.protocol.engine import EngineCoreRequest
from pagelet.protocol.kv_events import KVEvent
from pagelet.protocol.replica import ReplicaDescription
from pagelet.protocol.sampling import SamplingParams

_MAX_MODEL_LEN = 16_384


@dataclasses.dataclass(frozen=True)
class Hardware:
    """What all replicas are; for the time of a step see `StepTime`."""

    step_seconds: float = 0.02
    token_seconds: float = 0.06 / 256
    max_num_batched_tokens: int = 256
    num_blocks: int = 2048
    block_size: int = 16
    max_num_seqs: int = 64
    max_waiting: int = 256
    """Requests in its queue beyond which a replica refuses more."""

    def step(self, num_tokens: int) -> float:
        """Seconds of a step of so many tokens."""
        return StepTime(self.step_seconds, self.token_seconds).seconds(num_tokens)

    @property
    def tokens_per_second(self) -> float:
        """Of steps that are full."""
        return self.max_num_batched_tokens / self.step(self.max_num_batched_tokens)


@dataclasses.dataclass(slots=True)
class Progress:
    """What one step brought one request."""

    key: int
    num_tokens: int
    finished: bool
    num_cached_tokens: int


class SimulatedReplica:
    """One engine. The caller keeps the time: it calls `begin_step`, and `end_step` when that many
    seconds have passed."""

    def __init__(self, name: str, hardware: Hardware, slowdown: float = 1.0) -> None:
        self.name = name
        self.hardware = hardware
        self._slowdown = slowdown
        self._kv = KVCacheManager(
            make_layout([None], 1),
            hardware.num_blocks,
            hardware.block_size,
            record_events=True,
        )
        self._scheduler = Scheduler(
            SchedulerOptions(
                max_num_batched_tokens=hardware.max_num_batched_tokens,
                max_num_seqs=hardware.max_num_seqs,
            ),
            self._kv,
            _MAX_MODEL_LEN,
        )
        self._answers: dict[int, list[int]] = {}
        self._plan: SchedulerOutput | None = None
        self.step_ends = 0.0
        """When the step that runs will end, if one runs."""
        self.busy_seconds = 0.0

    def describe(self) -> ReplicaDescription:
        """What a real one would say of itself."""
        hardware = self.hardware
        return ReplicaDescription(
            incarnation="1",
            version="simulated",
            served_model_names=["simulated"],
            max_model_len=_MAX_MODEL_LEN,
            block_size=hardware.block_size,
            num_kv_blocks=hardware.num_blocks,
            max_num_seqs=hardware.max_num_seqs,
            enable_prefix_caching=True,
            data_parallel_size=1,
            prefill_tokens_per_second=hardware.tokens_per_second,
            decode_step_seconds=hardware.step(hardware.max_num_seqs // 8),
        )

    def submit(self, key: int, item: Item, prompt: list[int], hashes: Sequence[bytes]) -> bool:
        """Takes a request in; false if it is refused."""
        if len(self._scheduler.waiting) >= self.hardware.max_waiting:
            return False
        params = SamplingParams(
            max_tokens=len(item.answer), temperature=0.0, seed=0, ignore_eos=True
        )
        self._scheduler.add(_core_request(key, prompt, params))
        self._scheduler.requests[key].block_hashes.extend(hashes)
        self._answers[key] = item.answer
        return True

    @property
    def running(self) -> bool:
        """Whether a step is under way."""
        return self._plan is not None

    def begin_step(self, now: float) -> bool:
        """Starts a step if there is work."""
        assert self._plan is None
        self._plan = self._scheduler.schedule()
        if self._plan is None:
            return False
        seconds = self.hardware.step(self._plan.num_tokens) * self._slowdown
        self.busy_seconds += seconds
        self.step_ends = now + seconds
        return True

    def end_step(self) -> tuple[list[Progress], list[KVEvent]]:
        """What the step brought, and what the prefix cache gained and lost."""
        assert self._plan is not None
        plan, self._plan = self._plan, None
        requests = self._scheduler.requests
        sampled, cached = [], {}
        for entry in plan.scheduled:
            request = requests[entry.request_id]
            cached[entry.request_id] = request.num_cached_tokens
            answer = self._answers[entry.request_id]
            tokens = [answer[request.num_generated_tokens]] if entry.samples else []
            sampled.append(SampledToken(entry.request_id, tokens))
        progress = []
        for output in self._scheduler.update(plan, RunnerOutput(plan.step, sampled)):
            finished = output.finish_reason is not None
            key = output.request_id
            progress.append(Progress(key, len(output.new_token_ids), finished, cached[key]))
            if finished:
                del self._answers[key]
        self._scheduler.take_stats()
        return progress, self._kv.pool.take_events()

    # What only an oracle can see

    def exact_hit_tokens(self, hashes: Sequence[bytes]) -> int:
        """How much of a prompt is cached, or about to be when its turn comes."""
        lookup = self._kv.pool.lookup
        announced = self._scheduler._prefilling
        blocks = 0
        for block_hash in hashes:
            if lookup(0, block_hash) is None and block_hash not in announced:
                break
            blocks += 1
        return blocks * self.hardware.block_size

    def exact_ttft(self, now: float, num_prompt_tokens: int, hashes: Sequence[bytes]) -> float:
        """Seconds until the first token of a request that came now."""
        hardware, scheduler = self.hardware, self._scheduler
        backlog = decodes = 0
        for request in scheduler.running:
            missing = len(request.token_ids) - request.num_computed_tokens
            if missing > 1:
                backlog += missing
            else:
                decodes += 1
        ahead: set[bytes] = set()
        for request in scheduler.waiting:
            backlog += self._uncached(request, ahead)
        hit = self.exact_hit_tokens(hashes)
        while hit < num_prompt_tokens and hit // hardware.block_size < len(hashes):
            if hashes[hit // hardware.block_size] not in ahead:
                break
            hit += hardware.block_size
        own = max(1, num_prompt_tokens - hit)
        room = max(1, hardware.max_num_batched_tokens - decodes)
        full, rest = divmod(backlog + own, room)
        seconds = full * hardware.step(hardware.max_num_batched_tokens)
        seconds += hardware.step(rest + decodes) if rest else 0.0
        if self.running:
            seconds += self.step_ends - now
        return seconds * self._slowdown

    def _uncached(self, request: Request, ahead: set[bytes]) -> int:
        """Tokens that a waiting request has to compute, those ahead of it done."""
        hashes = request.block_hashes
        hit = self.exact_hit_tokens(hashes) // self.hardware.block_size
        while hit < len(hashes) and hashes[hit] in ahead:
            hit += 1
        ahead.update(hashes[hit:])
        return max(1, request.num_prompt_tokens - hit * self.hardware.block_size)


def _core_request(key: int, prompt: list[int], params: SamplingParams) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=key, external_id=str(key), prompt_token_ids=prompt, params=params
    )
