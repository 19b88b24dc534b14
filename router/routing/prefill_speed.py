"""How fast a replica gets from a prompt to its first token, from what a router sees of it."""

_KEPT = 0.97
"""What an answer counts for after the next one: the newest thirty or so make the line, enough for
two coefficients and few enough to follow a change of load within seconds."""
_PRIOR = 8.0
"""The rate that is known beforehand counts as so many answers, each as far from the mean in its
tokens as that is from none: prompts that are all alike tell nothing of the slope, and what replicas
that are alike seem to differ by is chance. A quarter of those that count."""
_LEAST_SLOPE = 0.2
"""Share of the work that is known beforehand, or of the mean time, that counts as work at least, or
chance would make work free. A share of the mean time alone would make a replica that had little to
compute, as where all prompts are cached, many times slower than it says."""
_STALLED = 3.0
"""An answer that took so many times as long as it should counts as no longer than that."""
_ENOUGH_ANSWERS = 3
"""Of a replica that says nothing of itself, until they are relied on; and until one is called
stalled."""


class PrefillSpeed:
    """The line `seconds = start_seconds + tokens / rate` through what is seen, by least squares.

    `tokens` are those of a prompt and of the prompts before it, without what is cached; what is
    besides them, `start_seconds`, is a step's fixed time, the network, and what others send to the
    same replica. One mean rate cannot tell those apart: with it, a router
    that sees short prompts alone thinks that a long one takes several times as long as it does.
    """

    def __init__(self, start_seconds: float) -> None:
        self._described_rate: float | None = None
        self.described_start = start_seconds
        """Seconds of a step of decodes alone: what the replica says, if it does."""
        self._count = self._x = self._y = self._xx = self._xy = 0.0
        self.start_seconds = start_seconds
        self.rate: float | None = None
        """Tokens a second; None while nothing is known of it."""

    def describe(self, rate: float | None, start_seconds: float | None) -> None:
        """What the replica says that it measured; None changes nothing."""
        self._described_rate = rate or self._described_rate
        self.described_start = start_seconds or self.described_start
        self._fit()

    def forget(self) -> None:
        """Goes back to what the replica says, if it does."""
        if self._described_rate is None:
            return
        self._count = self._x = self._y = self._xx = self._xy = 0.0
        self._fit()

    def observe(self, tokens: int, seconds: float) -> None:
        """A first token came so long after its request was sent; `tokens` (at least 1) had to be
        computed until then, as was thought when it was sent."""
        if self.rate is not None and self._count > _ENOUGH_ANSWERS:
            seconds = min(seconds, _STALLED * (self.start_seconds + tokens / self.rate))
        self._count = _KEPT * self._count + 1
        self._x = _KEPT * self._x + tokens
        self._y = _KEPT * self._y + seconds
        self._xx = _KEPT * self._xx + tokens * tokens
        self._xy = _KEPT * self._xy + tokens * seconds
        self._fit()

    def _fit(self) -> None:
        known = self._described_rate
        if self._count < (1 if known else _ENOUGH_ANSWERS - 0.5):
            self.rate, self.start_seconds = known, self.described_start
            return
        tokens, seconds = self._x / self._count, max(1e-6, self._y / self._count)
        steepest = seconds / tokens
        """All of the time is work."""
        prior = min(1 / known, steepest) if known else steepest
        weight = _PRIOR * tokens**2
        spread = max(0.0, self._xx - self._count * tokens**2)
        together = self._xy - self._count * tokens * seconds
        slope = (together + weight * prior) / (spread + weight)
        slope = min(max(slope, _LEAST_SLOPE * prior), steepest)
        self.rate = max(1.0, 1 / slope)
        self.start_seconds = max(0.0, seconds - tokens * slope)
