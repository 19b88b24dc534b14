"""Tells a rank that hangs from one that is busy, by the heartbeats that a thread of each sends
outside of its step loop. Torch-free."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pagelet.engine.executor.progress import COMPUTING, IDLE
from pagelet.engine.executor.topology import RankPlace

BEAT_SECONDS = 0.5
_HEARD_SECONDS = 2 * BEAT_SECONDS
"""Since the last heartbeat of a process that runs."""
_STOPPED_SECONDS = 3.0
"""How long a process that is stopped is waited for."""
_SILENT_SECONDS = 60.0
"""How long any other one is: an operation that keeps the interpreter's lock silences it too."""
_DEADLOCK_SECONDS = 3.5
"""How long ranks that only wait for one another are."""
_NETWORK_DEADLOCK_SECONDS = 30.0
"""The same where large tensors may be on a slow way between machines."""


@dataclasses.dataclass
class _Seen:
    heard: float
    since: float
    """When it came into its state, as far as was heard, or was heard again in it."""
    state: str = COMPUTING
    changes: int = 0


class RankWatch:
    """The newest heartbeat of each rank, and what follows from them.

    Not safe for several threads at once.
    """

    def __init__(
        self,
        places: Sequence[RankPlace],
        is_stopped: Callable[[int], bool],
        *,
        one_machine: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_stopped` says of a rank's process whether a signal has stopped it."""
        self._places = places
        self._is_stopped = is_stopped
        self._deadlock_seconds = _DEADLOCK_SECONDS if one_machine else _NETWORK_DEADLOCK_SECONDS
        self._clock = clock
        self._seen = [_Seen(clock(), clock()) for _ in places]

    def beat(self, rank: int, state: str, changes: int) -> None:
        """A rank's heartbeat came in; see `Progress`."""
        seen, now = self._seen[rank], self._clock()
        # One that was silent may not have run meanwhile: it has not waited for anybody as long.
        if (state, changes) != (seen.state, seen.changes) or now - seen.heard > _HEARD_SECONDS:
            seen.state, seen.changes, seen.since = state, changes, now
        seen.heard = now

    def fault(self) -> str | None:
        """Which rank hangs, and how it shows; None if none does."""
        now = self._clock()
        for place, seen in zip(self._places, self._seen, strict=True):
            silent = now - seen.heard
            if silent > _STOPPED_SECONDS and self._is_stopped(place.rank):
                return (
                    f"{place} hangs: a signal has stopped its process, which has been silent for "
                    f"{silent:.1f} s; it was last {_describe(seen)}"
                )
            if silent > _SILENT_SECONDS:
                return (
                    f"{place} hangs: its process has been silent for {silent:.0f} s; it was last "
                    f"{_describe(seen)}"
                )
        return self._deadlock(now)

    def _deadlock(self, now: float) -> str | None:
        """Ranks wait for one another and none computes what they wait for."""
        waiting = [seen for seen in self._seen if seen.state not in (COMPUTING, IDLE)]
        stuck = bool(waiting) and all(
            seen.state != COMPUTING
            and now - seen.heard < _HEARD_SECONDS
            and now - seen.since > self._deadlock_seconds
            for seen in self._seen
        )
        if not stuck:
            return None
        states = "; ".join(
            f"{place} is {_describe(seen)}"
            for place, seen in zip(self._places, self._seen, strict=True)
        )
        return f"the ranks wait for one another since {self._deadlock_seconds:g} s: {states}"


def _describe(seen: _Seen) -> str:
    return seen.state if seen.state in (COMPUTING, IDLE) else f"waiting for {seen.state}"


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped a process; False where /proc does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "Tt"
