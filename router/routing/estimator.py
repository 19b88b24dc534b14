"""How long a request would wait on a replica, from what the router itself sees of it.

A replica computes prompts about in the order of arrival, so the prompts that were sent to it and
have not answered yet are a queue in front of a new one. The queue shrinks by the replica's prefill
rate as time goes on, and is put right whenever a first token arrives. Nothing is polled, so nothing
is stale: a request counts from the moment that it is sent.
"""

from pagelet.protocol.autoscaling.demand import DecodeLine
from pagelet.protocol.replica import ReplicaDescription
from pagelet.router.routing.decode_speed import DecodeSpeed
from pagelet.router.routing.prefill_speed import PrefillSpeed

DEFAULT_PREFILL_RATE = 8000.0
"""Tokens a second of a replica of which nothing is known yet."""
DEFAULT_STEP_SECONDS = 0.02
_LEAST_STEP_SECONDS = 1e-4
_UNKNOWN_SEQS = 256
"""Most requests that a replica of which nothing is known runs at once."""
_OVERDUE = 2.0
"""A prompt that takes so many times as long as it should shows a replica that is slower than was
thought; it is then taken to need as much time again as it is late."""
_WEIGHT = 0.1
"""Of the newest answer in the mean duration of answers."""


class InFlight:
    """One request on a replica."""

    __slots__ = (
        "ahead",
        "began",
        "beside",
        "decode_began",
        "prefilling",
        "silent",
        "tokens",
        "took",
        "uncached",
    )

    def __init__(self, uncached: int, ahead: int, now: float, silent: bool) -> None:
        self.uncached = uncached
        self.ahead = ahead
        """Tokens that were still to be computed before its own."""
        self.tokens = uncached
        """Tokens whose KV it holds for itself."""
        self.began = now
        self.decode_began = now
        self.beside = 0
        """Answers that went on when its own began, itself included."""
        self.took: float | None = None
        """Seconds to its first token."""
        self.prefilling = True
        self.silent = silent
        """Its first token comes with its last one."""


class ReplicaEstimator:
    """The work on one replica and the speed at which it does it."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.pending_tokens = 0
        """Of prompts that were sent and have not answered yet, without what is cached."""
        self._queue: dict[int, InFlight] = {}  # by id(), in order of arrival
        self._head_since = 0.0
        """When the replica began with the prompt at the head of the queue, as far as seen."""
        self._held_tokens = 0
        self._answer_seconds = 0.0
        """Mean time from the first token of an answer to its end."""
        self._speed = PrefillSpeed(DEFAULT_STEP_SECONDS)
        self._decode = DecodeSpeed()
        self._max_num_seqs = _UNKNOWN_SEQS
        self._capacity_tokens: int | None = None

    @property
    def rate(self) -> float | None:
        """Prefill tokens a second; None while nothing is known of it."""
        return self._speed.rate

    @property
    def start_seconds(self) -> float:
        """What a first token takes besides the work of prompts."""
        return self._speed.start_seconds

    @property
    def decode_line(self) -> DecodeLine | None:
        """How fast its answers go on; None while none was seen."""
        return self._decode.line

    @property
    def decoding(self) -> int:
        """Answers that have begun and not ended."""
        return self.in_flight - len(self._queue)

    @property
    def queued(self) -> tuple[int, int]:
        """Prompts that wait for another one to be computed, and their tokens not cached."""
        if not self._queue:
            return 0, 0
        head = next(iter(self._queue.values()))
        return len(self._queue) - 1, self.pending_tokens - head.uncached

    @property
    def decode_slots(self) -> int:
        """Most answers that go on in one step."""
        return self._max_num_seqs

    @property
    def kv_use(self) -> float:
        """Share of its KV cache that answers in flight fill; above 1 some of them have to wait. 0
        if its size is not known."""
        return self._held_tokens / self._capacity_tokens if self._capacity_tokens else 0.0

    def describe(self, description: ReplicaDescription) -> None:
        """Takes in what a replica says of itself."""
        ranks = description.data_parallel_size
        self._max_num_seqs = description.max_num_seqs
        self._capacity_tokens = description.num_kv_blocks * description.block_size
        rate, step = description.prefill_tokens_per_second, description.decode_step_seconds
        self._speed.describe(
            None if rate is None else max(1.0, rate * ranks),
            None if step is None else max(_LEAST_STEP_SECONDS, step),
        )

    def begin(self, uncached: int, now: float, *, silent: bool = False) -> InFlight:
        """A request with so many tokens to prefill was sent. Of a `silent` one nobody will hear
        when that is done: it is taken to be when it should."""
        ahead, rate = 0, self.rate or DEFAULT_PREFILL_RATE
        self._pass_silent(now, rate)
        if self._queue:
            ahead = max(0, self.pending_tokens - int(self._done_tokens(now, rate)))
        item = InFlight(uncached, ahead, now, silent)
        if not self._queue:
            self._head_since = now
        self._queue[id(item)] = item
        self.in_flight += 1
        self.pending_tokens += uncached
        self._held_tokens += uncached
        return item

    def first_token(self, item: InFlight, now: float) -> None:
        """A request's prefill is done."""
        if not item.prefilling or item.silent:
            return
        self._leave_queue(item)
        self._head_since = now
        item.decode_began = now
        item.beside = self.decoding
        item.took = now - item.began

    def generated(self, item: InFlight, count: int) -> None:
        """A request holds `count` tokens more."""
        item.tokens += count
        self._held_tokens += count

    def end(self, item: InFlight, now: float, uncached: int | None = None) -> None:
        """A request is gone from the replica, which had `uncached` tokens of it to prefill after
        all, if it told."""
        if item.took is not None:
            own = item.uncached if uncached is None else max(1, uncached)
            self._speed.observe(item.ahead + own, item.took)
        if not (item.prefilling or item.silent):
            answers = (item.beside + self.decoding) / 2
            generated = item.tokens - item.uncached - 1  # from the first one on
            self._decode.observe(answers, generated, now - item.decode_began)
        self.in_flight -= 1
        self._held_tokens -= item.tokens
        if item.prefilling:
            self._leave_queue(item)
            self._head_since = now
        else:
            seconds = now - item.decode_began
            known = self._answer_seconds
            self._answer_seconds = seconds if not known else known + _WEIGHT * (seconds - known)

    def wait_seconds(self, now: float, rate: float) -> float:
        """Estimated time until the replica would begin with one more prompt."""
        wait = 0.0
        self._pass_silent(now, rate)
        if self._queue:
            head = next(iter(self._queue.values()))
            wait = (self.pending_tokens - self._done_tokens(now, rate)) / rate
            expected = head.uncached / rate + self.start_seconds
            overdue = now - self._head_since - _OVERDUE * expected
            if overdue > 0:
                wait += overdue
        if self.in_flight >= self._max_num_seqs:
            ends = self.in_flight - self._max_num_seqs + 1
            wait = max(wait, ends * self._answer_seconds / self._max_num_seqs)
        if self._capacity_tokens is not None and self._held_tokens > self._capacity_tokens:
            excess = self._held_tokens - self._capacity_tokens
            wait = max(wait, excess * self._answer_seconds / self._held_tokens)
        return wait

    def _leave_queue(self, item: InFlight) -> None:
        item.prefilling = False
        del self._queue[id(item)]
        self.pending_tokens -= item.uncached

    def _done_tokens(self, now: float, rate: float) -> float:
        """Of the prompt at the head of the queue, which must be there."""
        head = next(iter(self._queue.values()))
        return min((now - self._head_since) * rate, head.uncached)

    def _pass_silent(self, now: float, rate: float) -> None:
        """Takes silent requests at the head of the queue to be done when they should be."""
        while self._queue:
            head = next(iter(self._queue.values()))
            ends = self._head_since + head.uncached / rate
            if not head.silent or ends > now:
                return
            self._leave_queue(head)
            self._head_since = head.decode_began = ends
