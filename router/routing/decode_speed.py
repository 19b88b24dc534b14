"""How fast a replica's answers go on, by how many there are at once, from what a router sees."""

from pagelet.protocol.autoscaling.demand import DecodeLine

_KEPT = 0.97
"""What an answer counts for after the next one: the newest thirty or so make the line."""
_PRIOR = 8.0
"""Answers for which it counts that half of the time is taken to be each answer's own, as far from
the mean in their number as that is from none: where all are alike, nothing tells the two apart."""
_PRIOR_SHARE = 0.5
_LEAST_SHARE = 0.05
"""Of the mean time, that is taken to be each answer's own at least."""
_LEAST_PACE = 1e-6
"""Of tokens that came all at once."""
_LEAST_TOKENS = 8
"""Of an answer whose pace is looked at."""


class DecodeSpeed:
    """The line `seconds a token = base + each x answers at once` through what is seen, by least
    squares. The time is a client's: what prompts in between take of it counts, too."""

    def __init__(self) -> None:
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, answers: float, tokens: int, seconds: float) -> None:
        """An answer's tokens after the first came within so many seconds, while in the mean so many
        answers went on."""
        if tokens < _LEAST_TOKENS:
            return
        pace = max(seconds / tokens, _LEAST_PACE)
        self._count = _KEPT * self._count + 1
        self._x = _KEPT * self._x + answers
        self._y = _KEPT * self._y + pace
        self._xx = _KEPT * self._xx + answers * answers
        self._xy = _KEPT * self._xy + answers * pace

    @property
    def line(self) -> DecodeLine | None:
        """None while nothing was seen."""
        if not self._count:
            return None
        answers, seconds = self._x / self._count, self._y / self._count
        weight = _PRIOR * answers**2
        spread = max(0.0, self._xx - self._count * answers**2)
        together = self._xy - self._count * answers * seconds
        steepest = seconds / answers
        slope = (together + weight * _PRIOR_SHARE * steepest) / (spread + weight)
        slope = min(max(slope, _LEAST_SHARE * steepest), steepest)
        return DecodeLine(base=seconds - slope * answers, each=slope)
