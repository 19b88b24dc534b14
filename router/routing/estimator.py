"""How long a request would wait on a replica, from what the router itself sees of it.

A replica computes prompts about in the order of arrival, so the prompts that were sent to it and
have not answered yet are a queue in front of a new one. The queue shrinks by the replica's prefill
rate as time goes on, and is put right whenever a first token arrives. Engines compute in steps, and
every token that arrives tells that one has ended: a prompt that came since then waits for the next
one, and a step that ends one prompt has begun with those behind it. Nothing is polled, so nothing
is stale: a request counts from the moment that it is sent.
"""

import math

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
_FULL_STEP = 3.0
"""So many times what a step of decodes alone takes, a step full of prompts is taken to take. Only a
fraction of a step hangs on it: two would do as well."""
_SAME_STEP = 0.5
"""Of what a step of decodes takes: tokens that come closer together are those of one step."""
_STALE_SECONDS = 5.0
"""After so long without a request a replica is judged anew, by what it says of itself: one that
once looked slow would else get none by which to show that it is not."""
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
        "residual",
        "silent",
        "tokens",
        "took",
        "uncached",
    )

    def __init__(
        self, uncached: int, ahead: int, residual: float, now: float, silent: bool
    ) -> None:
        self.uncached = uncached
        self.ahead = ahead
        """Tokens that were still to be computed before its own."""
        self.residual = residual
        """Seconds until the step under way would end, if it did not compute them."""
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
        self._step_began = 0.0
        """When the last step ended, as far as seen, and so the one under way began."""
        self._computed = 0.0
        """Tokens of the queue that were computed until then."""
        self._late = 0
        """Tokens of the queue that came after that, and so wait for the next step."""
        self._idle_since = 0.0
        """When its last answer ended, if it has nothing to do."""
        self._judged_since = -math.inf
        """Answers to what was sent before do not tell of its speed."""
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

    def forget_speed(self, now: float) -> None:
        """What was seen of its prefill was not so, or is long ago; answers under way count no
        more either."""
        self._judged_since = now
        self._speed.forget()

    def begin(self, uncached: int, now: float, *, silent: bool = False) -> InFlight:
        """A request with so many tokens to prefill was sent. Of a `silent` one nobody will hear
        when that is done: it is taken to be when it should."""
        rate = self.rate or DEFAULT_PREFILL_RATE
        self._pass_silent(now, rate)
        ahead, residual = self._ahead(now, rate)
        item = InFlight(uncached, int(ahead), residual, now, silent)
        if not self._queue:
            self._head_since = now
        if self.in_flight:
            self._late += uncached
        else:
            self._step_began = now
            self._computed, self._late = 0.0, 0
        self._queue[id(item)] = item
        self.in_flight += 1
        self.pending_tokens += uncached
        self._held_tokens += uncached
        return item

    def first_token(self, item: InFlight, now: float) -> None:
        """A request's prefill is done."""
        if not item.prefilling or item.silent:
            return
        self._see_step(now)
        self._leave_queue(item)
        self._head_since = now
        item.decode_began = now
        item.beside = self.decoding
        item.took = now - item.began

    def generated(self, item: InFlight, count: int, now: float) -> None:
        """A request holds `count` tokens more."""
        self._see_step(now)
        item.tokens += count
        self._held_tokens += count

    def end(self, item: InFlight, now: float, uncached: int | None = None) -> None:
        """A request is gone from the replica, which had `uncached` tokens of it to prefill after
        all, if it told."""
        if item.took is not None and item.began >= self._judged_since:
            own = item.uncached if uncached is None else max(1, uncached)
            self._speed.observe(item.ahead + own, max(0.0, item.took - item.residual))
        if not (item.prefilling or item.silent):
            answers = (item.beside + self.decoding) / 2
            generated = item.tokens - item.uncached - 1  # from the first one on
            self._decode.observe(answers, generated, now - item.decode_began)
        self.in_flight -= 1
        self._idle_since = now
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
        if not self.in_flight:
            if now - self._idle_since > _STALE_SECONDS:
                self.forget_speed(now)
            return 0.0
        self._pass_silent(now, rate)
        ahead, residual = self._ahead(now, rate)
        wait = ahead / rate + residual
        head = self._head()
        if head is not None:
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
        self._computed = max(0.0, self._computed - item.uncached)
        del self._queue[id(item)]
        self.pending_tokens -= item.uncached
        self._late = min(self._late, self.pending_tokens)

    def _head(self) -> InFlight | None:
        return next(iter(self._queue.values()), None)

    def _ahead(self, now: float, rate: float) -> tuple[float, float]:
        """Tokens to be computed before those of a prompt that came now, and seconds until the step
        under way ends if none of them are computed in it: a prompt waits for the next one."""
        if not self.in_flight:
            return 0.0, 0.0
        step, passed = self._speed.described_start, now - self._step_began
        head = self._head()
        if head is None:
            return 0.0, max(0.0, step - passed)
        first = head.uncached
        full = _FULL_STEP * step
        # No more than that is sure, since the first one has not answered.
        computed = min(self._computed, first)
        taken = max(0.0, self.pending_tokens - self._late - computed)
        done = min(taken, passed * rate, max(first - computed, full * rate))
        residual = 0.0
        if done == taken:
            # Besides the prompts in it a step takes the less, the fuller it is.
            seconds = taken / rate + step * max(0.0, 1 - taken / rate / full)
            residual = max(0.0, seconds - passed)
        return max(0.0, self.pending_tokens - computed - done), residual

    def _see_step(self, now: float) -> None:
        """A token came, so a step has ended."""
        passed = now - self._step_began
        if passed < _SAME_STEP * self._speed.described_start:
            return
        if self._queue:
            rate = self.rate or DEFAULT_PREFILL_RATE
            taken = self.pending_tokens - self._late - self._computed
            self._computed += max(0.0, min(taken, passed * rate))
        self._late = 0
        self._step_began = now

    def _pass_silent(self, now: float, rate: float) -> None:
        """Takes silent requests at the head of the queue to be done when they should be."""
        while self._queue:
            head = next(iter(self._queue.values()))
            ends = self._head_since + head.uncached / rate
            if not head.silent or ends > now:
                return
            self._see_step(ends)
            self._leave_queue(head)
            self._head_since = head.decode_began = ends
