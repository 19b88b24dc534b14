"""How many tokens to draft for a request: as many as pay off, and none while drafting costs time.

A drafted token lengthens its step for everyone in it, and brings a token only if it and all before
it are right. With `n` requests in a step of `plain` seconds a token is worth `plain / n`; so the
j-th draft of a request pays off if acceptance**j * plain / n exceeds what a draft adds to a step.
Both are measured while the engine runs. (Choosing the length by a measured cost follows Liu et al.,
"Optimizing speculative decoding for serving using goodput", arXiv 2406.14066.)
"""

import dataclasses

_WEIGHT = 0.1
"""Of the newest observation in the moving averages of times."""
_OUTLIER = 4.0
"""An interval so many times the average is somebody else's work on the machine."""
_PLAIN_STEPS = 4
"""Steps without drafts before their time is believed."""
_FOUND_WEIGHT = 0.1
"""Of the newest try in the share of tries that found a draft."""
FIRST_ACCEPTANCE = 0.6
"""What is hoped for while nothing is known."""
_TRIES = 8
"""Steps that a request drafts in before it is judged."""
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256
"""Tokens without drafts, for each request that runs, after they were judged not to pay off;
doubling each time in a row."""


@dataclasses.dataclass
class _Times:
    """Moving averages of steps with about the same number of requests, in seconds."""

    plain: float = 0.0
    num_plain: int = 0
    wait: float | None = None
    """What a step takes longer since its plan waited for the last tokens, without any draft."""
    draft: float | None = None
    """What each draft adds to a step, its share of the waiting included."""


class StepTimes:
    """What steps of decodes take, without drafts and with them."""

    def __init__(self) -> None:
        self._times: dict[int, _Times] = {}

    def _of(self, num_requests: int) -> _Times:
        return self._times.setdefault(num_requests.bit_length(), _Times())

    def observe(self, num_requests: int, num_drafts: int, waited: bool, seconds: float) -> None:
        """From the end of one step to the end of the next, which computed a token for each of
        `num_requests` requests and `num_drafts` drafts besides; `waited`: it was planned only when
        the tokens of the step before were known."""
        times = self._of(num_requests)
        if times.plain and seconds > _OUTLIER * times.plain * (1 + num_drafts / num_requests):
            return
        if not waited:
            times.num_plain += 1
            times.plain += max(_WEIGHT, 1 / times.num_plain) * (seconds - times.plain)
        elif times.num_plain >= _PLAIN_STEPS:
            more = max(0.0, seconds - times.plain)
            if num_drafts:
                each = more / num_drafts
                known = each if times.draft is None else times.draft
                times.draft = known + _WEIGHT * (each - known)
            else:
                known = more if times.wait is None else times.wait
                times.wait = known + _WEIGHT * (more - known)

    def knows_plain(self, num_requests: int) -> bool:
        """Whether enough steps without drafts were seen to compare with."""
        return self._of(num_requests).num_plain >= _PLAIN_STEPS

    def draft_price(self, num_requests: int) -> float:
        """What a draft costs in tokens: how likely it must be right to pay off."""
        times = self._of(num_requests)
        return 0.0 if times.draft is None else times.draft * num_requests / times.plain

    def wait_price(self, num_requests: int) -> float:
        """What a step that waited in vain for a draft costs in tokens."""
        times = self._of(num_requests)
        return 0.0 if times.wait is None else times.wait * num_requests / times.plain


class Acceptance:
    """How likely a draft is right if all before it are: a decaying count of outcomes."""

    def __init__(self, decay: float = 0.9) -> None:
        """`decay` is what an outcome is worth after the next one."""
        self._decay = decay
        self._right = self._wrong = 0.0

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """Of `num_drafts` drafts in a row the first `num_accepted` were right; nothing is known of
        those after the first wrong one."""
        for _ in range(num_accepted):
            self._right = self._decay * self._right + 1.0
            self._wrong *= self._decay
        if num_accepted < num_drafts:
            self._right *= self._decay
            self._wrong = self._decay * self._wrong + 1.0

    def rate(self, prior: float) -> float:
        """The share of drafts that were right; `prior` is believed as long as little was seen."""
        return (self._right + prior) / (self._right + self._wrong + 1.0)


class DraftPace:
    """One request's drafting: how much, or not at all for a while."""

    __slots__ = ("_acceptance", "_found", "_pause", "_probes", "_resumes_at", "_tries")

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._resumes_at = 0
        self._probes = False
        """Whether it drafts after a pause, to see whether it pays off by now."""
        self._begin()

    def _begin(self) -> None:
        self._acceptance = Acceptance()
        self._found = 1.0
        """Share of late tries that found anything to draft."""
        self._tries = 0

    def pauses(self, num_tokens: int) -> bool:
        """Whether nothing is drafted after `num_tokens` tokens of the sequence."""
        return num_tokens < self._resumes_at

    def length(
        self, most: int, times: StepTimes, num_requests: int, prior: float, num_tokens: int
    ) -> int:
        """How many tokens to draft after `num_tokens`, at most `most`, in a step of `num_requests`
        requests; 0 begins a pause. `prior` is the acceptance that other requests saw."""
        price = times.draft_price(num_requests)
        rate = self._acceptance.rate(FIRST_ACCEPTANCE if self._probes else prior)
        length, gain, likely = 0, 0.0, rate
        while length < most and likely > price:
            length, gain, likely = length + 1, gain + likely, likely * rate
        if self._tries < _TRIES:
            if length or self._probes:
                return max(1, length)
        elif self._found * (gain - length * price) > (1 - self._found) * times.wait_price(
            num_requests
        ):
            self._pause = _FIRST_PAUSE
            self._probes = False
            return length
        # So long that of all requests together few probe at any time: one is enough to make a
        # whole step wait for the last tokens.
        self._resumes_at = num_tokens + self._pause * num_requests
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._probes = True
        self._begin()
        return 0

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """What came of a step that was to draft: 0 drafts if there was nothing to be found."""
        self._tries += 1
        weight = max(_FOUND_WEIGHT, 1 / self._tries)
        self._found += weight * ((num_drafts > 0) - self._found)
        self._acceptance.observe(num_drafts, num_accepted)
