"""How much of a replica's time each answer took."""


class SharedTime:
    """Shares a replica's time evenly among the answers that it works on at once.

    A clock of its own goes 1/n as fast as the real one while n answers are in flight. An answer's
    share is by how far that clock moved meanwhile, and all shares add up to the time in which the
    replica was busy: the virtual time of fair queueing (Demers, Keshav and Shenker, 1989). `now` is
    any monotonic clock in seconds, always the same one.
    """

    __slots__ = ("_answers", "_now", "_virtual")

    def __init__(self) -> None:
        self._answers = 0
        self._now = 0.0
        self._virtual = 0.0

    def begin(self, now: float, answers: int) -> float:
        """That many answers begin, of one request; what it returns is for their `end`."""
        self._move(now)
        self._answers += answers
        return self._virtual

    def end(self, now: float, answers: int, began: float) -> float:
        """They ended: their share in seconds."""
        self._move(now)
        self._answers -= answers
        return answers * (self._virtual - began)

    def _move(self, now: float) -> None:
        if self._answers:
            self._virtual += (now - self._now) / self._answers
        self._now = now
