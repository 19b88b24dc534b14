"""Signals as events of a loop: nothing happens inside of a handler."""

import contextlib
import os
import select
import signal
from types import FrameType, TracebackType
from typing import Final

CUT_OFF: Final = signal.SIGQUIT
"""To a supervisor, and from it to what answers requests: end at once, as a second SIGTERM asks for,
but let clients be told."""
CUT_OFF_SECONDS: Final = 1.0
"""For telling them; what is left then is killed."""
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, CUT_OFF)


class SignalQueue:
    """While entered, `HANDLED` signals wake `wait` and do nothing else.

    Handlers are set rather than signals ignored, since an ignored signal stays so in children.
    """

    def __enter__(self) -> "SignalQueue":
        self._received: list[int] = []
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wakeup_fd = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, self._note) for number in HANDLED}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup_fd)
        os.close(self._read_fd)
        os.close(self._write_fd)

    def wait(self, seconds: float) -> list[int]:
        """Blocks until a signal comes or the time is up; the signals since the last call."""
        if not self._received:
            select.select([self._read_fd], [], [], max(seconds, 0.0))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read_fd, 4096):
                pass
        received, self._received = self._received, []
        return received

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
