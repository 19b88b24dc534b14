"""Speculative decoding as the scheduler sees it: which drafts a step verifies.

A drafted token is computed in the step as if it were known. The model's own token is drawn at every
position, with the random number of that position, and a draft counts if it is just that token; so
an answer has the same tokens, to the last, with drafts and without, greedy or sampled. (Leviathan
et al., arXiv 2211.17192, accept by chance instead, which keeps the distribution.) A draft model
draws with the same numbers, so that its token is the model's own wherever the two much agree.
"""

from pagelet.engine.scheduler.request import Request
from pagelet.engine.speculation.drafting import Drafting
from pagelet.engine.speculation.ngram import NgramIndex
from pagelet.engine.speculation.pace import FIRST_ACCEPTANCE, Acceptance, StepTimes
from pagelet.engine.structured.answer import ConstrainedAnswer
from pagelet.protocol.engine import SpeculationStats
from pagelet.protocol.speculation import SpeculationOptions

_PRIOR_DECAY = 0.99


class Speculation:
    """Drafts of all requests of one scheduler."""

    def __init__(self, options: SpeculationOptions) -> None:
        self.options = options
        self.times = StepTimes()
        self._acceptance = Acceptance(_PRIOR_DECAY)
        self._stats = SpeculationStats()
        self._waits = False

    @property
    def uses_model(self) -> bool:
        """Whether a draft model proposes, at the end of the step before."""
        return self.options.method == "draft_model"

    def begin(self, request: Request) -> None:
        """A request came in."""
        if request.max_total_tokens - len(request.token_ids) < 2:
            return  # its only token needs no draft
        options = self.options
        index = None if self.uses_model else NgramIndex(options.lookup_min, options.lookup_max)
        request.drafting = Drafting(index)

    def is_active(self, request: Request, num_requests: int) -> bool:
        """Whether the request drafts now, with `num_requests` running."""
        if request.drafting is None:
            return False
        return not self.options.adaptive or (
            self.times.knows_plain(num_requests)
            and not request.drafting.pace.pauses(len(request.token_ids))
        )

    def drafts(self, request: Request, most: int, num_requests: int) -> list[int]:
        """What a step verifies of a request all of whose tokens are known: at most `most` tokens
        after them."""
        drafting = request.drafting
        if drafting is None or most <= 0 or not self.is_active(request, num_requests):
            return []
        if drafting.index is None:
            drafts = list(drafting.proposed[:most])
            drafting.proposed = ()
            drafting.tries = bool(drafts)
        else:
            length = self._length(request, drafting, most, num_requests)
            if length == 0:
                return []
            drafts = drafting.index.propose(request.token_ids, length)
            drafting.tries = True
        if request.constraint is not None:
            drafts = _cut(drafts, request.constraint)
        self._waits |= drafting.tries
        return drafts

    def num_proposals(self, request: Request, most: int, num_requests: int) -> int:
        """How many tokens the draft model is to propose after the step's, at most `most`."""
        drafting = request.drafting
        if drafting is None or most <= 0 or not self.is_active(request, num_requests):
            return 0
        self._waits = True
        return self._length(request, drafting, most, num_requests)

    def _length(self, request: Request, drafting: Drafting, most: int, num_requests: int) -> int:
        most = min(most, self.options.num_speculative_tokens)
        if not self.options.adaptive:
            return most
        prior = self._acceptance.rate(FIRST_ACCEPTANCE)
        num_tokens = len(request.token_ids)
        return drafting.pace.length(most, self.times, num_requests, prior, num_tokens)

    def take_waits(self) -> bool:
        """Whether the step planned last had to know the tokens of the one before; once."""
        waits, self._waits = self._waits, False
        return waits

    def observe(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """A step of the request ended, in which the first `num_accepted` drafts were right."""
        drafting = request.drafting
        if drafting is None or not drafting.tries:
            return
        drafting.tries = False
        drafting.pace.observe(num_drafts, num_accepted)
        self._acceptance.observe(num_drafts, num_accepted)
        if num_drafts:
            stats = self._stats
            stats.num_drafts += 1
            stats.num_draft_tokens += num_drafts
            stats.num_accepted_tokens += num_accepted
            per_position = stats.accepted_per_position
            per_position += [0] * (num_accepted - len(per_position))
            for position in range(num_accepted):
                per_position[position] += 1

    def take_stats(self) -> SpeculationStats:
        """Counts since the last call."""
        stats, self._stats = self._stats, SpeculationStats()
        return stats


def _cut(drafts: list[int], constraint: ConstrainedAnswer) -> list[int]:
    """The drafts that the grammar allows, up to the one that completes the answer."""
    answer = constraint.fork()
    for count, token_id in enumerate(drafts):
        if answer.finished or not answer.accept(token_id):
            return drafts[:count]
    return drafts
