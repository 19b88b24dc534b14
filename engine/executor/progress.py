"""What a rank is at, for those who watch it from outside of its step loop."""

import contextlib
from collections.abc import Iterator

COMPUTING, IDLE = "computing", "idle"


class Progress:
    """Written by a rank's step loop, read by the thread that sends its heartbeat."""

    def __init__(self) -> None:
        self.state = COMPUTING
        """`COMPUTING`, `IDLE` (no step to run), or which other rank it waits for, and with what."""
        self.changes = 0
        """Grows whenever the state changes: a state that comes again is not one that stays."""

    @contextlib.contextmanager
    def being(self, state: str) -> Iterator[None]:
        """In this state for as long as it lasts, and computing after it."""
        self.state = state
        self.changes += 1
        try:
            yield
        finally:
            self.state = COMPUTING
            self.changes += 1
