"""One process of the tree under supervision: what it is, and what state it is in."""

import logging
import math
import signal
import time
from collections.abc import Callable

from pagelet.process.backoff import CrashBackoff, starting_again
from pagelet.process.child import ChildProcess
from pagelet.process.silence import SILENT_SECONDS, Silence

_STACK_DUMP_SECONDS = 1.0

log = logging.getLogger(__name__)

Start = Callable[[], ChildProcess]


class CannotStart(Exception):
    """Time and again the machine had nothing left for a process."""


class Managed:
    """A process that is started again when it dies, and killed when it hangs."""

    def __init__(self, name: str, start: Start, startup_seconds: float = math.inf) -> None:
        """One that reports its life does so within `startup_seconds` for the first time."""
        self.name = name
        self.process: ChildProcess | None = None
        self.restart_at: float | None = None
        """When to start it again, in `time.monotonic()` seconds, while it is down."""
        self.ready_since: float | None = None
        self._start = start
        self._startup_seconds = startup_seconds
        self._silence = Silence()
        self._kill_at: float | None = None  # once it is hung
        self._backoff = CrashBackoff()

    def start(self) -> None:
        """Starts the process. Where the machine has no process, memory or file left for it, that is
        tried again as after a crash; raises `CannotStart` once that was too often."""
        self.restart_at, self.ready_since, self._kill_at = None, None, None
        self._silence = Silence()
        try:
            self.process = self._start()
        except OSError as error:
            delay = self.record_failure()
            if delay is None:
                raise CannotStart(
                    f"{self.name} cannot be started: {error}, {self.failures} times in a row"
                ) from None
            again = starting_again(delay, self.failures)
            log.error("%s cannot be started: %s; %s", self.name, error, again)

    def is_ready(self) -> bool:
        """Whether it serves; remembers since when."""
        if self.process is None or not self._serves(self.process):
            return False
        if self.ready_since is None:
            self.ready_since = time.monotonic()
        return True

    def stage(self) -> str:
        """What its start-up is at, in a few words."""
        if self.process is None:
            return "waiting to start again" if self.restart_at is not None else "stopped"
        return "ready" if self.is_ready() else "starting"

    def terminate(self, number: int = signal.SIGTERM) -> None:
        """Asks it to end, by the signal that means that to it."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Ends it and its own children at once."""
        if self.process is not None:
            self.process.kill_group()

    def watch(self) -> None:
        """Call it about once a second: of a process that hangs the stacks are printed, and a moment
        later it is killed."""
        if self.process is None:
            return
        hang, now = self._hang(self.process), time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self.kill()
        elif hang is not None:
            log.error("%s is hung: %s; its stacks follow, then it is killed", self.name, hang)
            self.process.send_signal(signal.SIGUSR1)
            self._kill_at = now + _STACK_DUMP_SECONDS

    def reap(self) -> tuple[int, str | None]:
        """Takes the exit of a process that has ended: its return code, and its own words.

        Whatever is left of its process group is killed first, while its pid is still its own.
        """
        assert self.process is not None
        self.process.kill_group()
        returncode, failure = self.process.wait(), self.process.failure
        self.process.close()
        self.process = None
        return returncode, failure

    def record_failure(self) -> float | None:
        """Plans the next start after a back-off, in seconds; None if it is a crash loop."""
        now = time.monotonic()
        healthy = 0.0 if self.ready_since is None else now - self.ready_since
        delay = self._backoff.record_failure(healthy)
        if self._backoff.is_crash_loop:
            return None
        self.restart_at = now + delay
        return delay

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._backoff.failures

    def _hang(self, process: ChildProcess) -> str | None:
        """How it hangs, if it does."""
        silent = self._silence.look(process.has_beaten())
        if silent < (SILENT_SECONDS if process.beats else self._startup_seconds):
            return None
        return f"no sign of life for {silent:.0f} s"

    def _serves(self, process: ChildProcess) -> bool:
        return process.serving is not None
