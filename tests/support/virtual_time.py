"""An event loop whose clock is its own: what waits for a time has it at once."""

import asyncio


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer when nothing else is left to do. Begins at 0 seconds."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__()

    def time(self) -> float:
        """Of asyncio's loops."""
        return self._now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            timers = self._scheduled  # type: ignore[attr-defined]
            due = (timer.when() for timer in timers if not timer.cancelled())
            self._now = max(self._now, min(due, default=self._now))
        super()._run_once()  # type: ignore[misc]
