"""For how long another process has given no sign of life."""

import time
from typing import Final

SILENT_SECONDS: Final = 60.0
"""A process that has answered or reported before and then is silent for so long is hung."""
_LONGEST_LOOK_SECONDS: Final = 5.0


class Silence:
    """Adds up the time between looks at a process. No look counts for more than a few seconds:
    where a machine was frozen as a whole, or this process alone, the other one is not hung."""

    def __init__(self, longest_look: float = _LONGEST_LOOK_SECONDS) -> None:
        """`longest_look`: most seconds that one look counts for."""
        self._longest_look = longest_look
        self._last_look = time.monotonic()
        self._seconds = 0.0

    def look(self, heard: bool, now: float | None = None) -> float:
        """Seconds of silence, 0 if something was heard since the last look."""
        now = time.monotonic() if now is None else now
        elapsed = min(now - self._last_look, self._longest_look)
        self._last_look = now
        self._seconds = 0.0 if heard else self._seconds + elapsed
        return self._seconds
