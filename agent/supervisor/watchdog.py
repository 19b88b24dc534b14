"""The watchdog: tells an engine core that is hung from one that is busy or idle."""

import dataclasses

from pagelet.engine.core.heartbeat import CoreState, Heartbeat
from pagelet.process.silence import Silence

_LONGEST_TICK_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Hang:
    """What a hung core was at."""

    step: int
    num_unfinished: int
    seconds: float
    """How long neither its loop nor its step counter moved."""

    def __str__(self) -> str:
        return (
            f"step {self.step + 1} made no progress for {self.seconds:.0f} s "
            f"with {self.num_unfinished} unfinished requests"
        )


class Watchdog:
    """Watches one core's beats for a step that does not end.

    A core is hung when it has work and its beats stood still for `step_timeout` seconds. A step
    is bounded by the token budget, so even a long prompt's prefill moves the counter chunk by
    chunk. The time is summed over the watchdog's own looks, none of which counts for more than
    two seconds: a machine that was frozen as a whole is no hang.
    """

    def __init__(self, step_timeout: float) -> None:
        self._step_timeout = step_timeout
        self._seen: tuple[int, int, float] | None = None
        self._silence = Silence(_LONGEST_TICK_SECONDS)

    def look(self, beat: Heartbeat | None, now: float | None = None) -> Hang | None:
        """Takes the newest beat; call it about once a second. Returns the hang, if it is one."""
        if beat is None or beat.state is not CoreState.READY or not beat.has_work:
            self._seen = None
            self._silence.look(True, now)
            return None
        before, self._seen = self._seen, (beat.pid, beat.step, beat.step_began)
        stalled = self._silence.look(self._seen != before, now)
        if stalled < self._step_timeout:
            return None
        return Hang(beat.step, beat.num_unfinished, stalled)
