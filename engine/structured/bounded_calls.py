"""Native calls that cannot be interrupted, and that nobody may wait for without end."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

_LOOK_SECONDS: Final = 0.005
_MOST_GIVEN_UP: Final = 2
"""Calls that go on though nobody waits; with so many of them no other is begun."""
_LOWEST_PRIORITY: Final = 19

Call = Callable[[], object]


class BoundedCalls:
    """Calls from any thread, each in a thread of its own meanwhile."""

    def __init__(self, cpu_seconds: float) -> None:
        """Of a core, for each call: a busy machine makes none too long."""
        self._cpu_seconds = cpu_seconds
        self._idle: list[_Runner] = []
        self._given_up: list[_Runner] = []
        self._lock = threading.Lock()

    def run(self, call: Call) -> bool:
        """Whether the call has ended; if not, it goes on with the lowest priority and may touch
        what it was given. Raises what it raises."""
        with self._lock:
            self._given_up = [runner for runner in self._given_up if not runner.ended.is_set()]
            if len(self._given_up) >= _MOST_GIVEN_UP:
                return False
            runner = self._idle.pop() if self._idle else _Runner()
        runner.begin(call)
        while not runner.ended.wait(_LOOK_SECONDS):
            if runner.cpu_seconds > self._cpu_seconds:
                runner.give_up()
                with self._lock:
                    self._given_up.append(runner)
                return False
        with self._lock:
            self._idle.append(runner)
        if runner.error is not None:
            raise runner.error
        return True


class _Runner:
    """A thread that makes one call after the other."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None
        self._calls = queue.SimpleQueue[Call | None]()
        self._thread = threading.Thread(target=self._run, name="bounded-call", daemon=True)
        self._thread.start()
        assert self._thread.ident is not None
        self._clock = time.pthread_getcpuclockid(self._thread.ident)
        self._cpu_before = 0.0

    def begin(self, call: Call) -> None:
        self.ended.clear()
        self.error = None
        self._cpu_before = time.clock_gettime(self._clock)
        self._calls.put(call)

    @property
    def cpu_seconds(self) -> float:
        """Of the call, so far."""
        return time.clock_gettime(self._clock) - self._cpu_before

    def give_up(self) -> None:
        """Lets the thread end after its call."""
        self._calls.put(None)
        assert self._thread.native_id is not None
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, self._thread.native_id, _LOWEST_PRIORITY)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                self.error = error
            del call
            self.ended.set()
