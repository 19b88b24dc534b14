"""A process that cannot be started now is started when it can, and not for ever."""

import gc
import math
import os
import signal
import sys
import time
from typing import Any

import pytest

from pagelet.process.child import ChildProcess
from pagelet.process.managed import CannotStart, Managed


class Starts:
    """Starts nothing the first times, for want of a process; then what stands in for one."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.process: Any = object()

    def __call__(self) -> Any:
        self.failures -= 1
        if self.failures >= 0:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return self.process


def test_what_the_machine_has_nothing_left_for_is_started_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = Starts(2)
    managed = Managed("worker 0", starts)
    for delay in (0.5, 1.0):
        before = time.monotonic()
        managed.start()
        assert managed.process is None
        assert managed.restart_at is not None
        assert managed.restart_at >= before + delay
        assert managed.stage() == "waiting to start again"
    managed.start()
    assert managed.process is starts.process
    assert managed.restart_at is None
    assert caplog.text.count("worker 0 cannot be started: [Errno 11] Resource temporarily") == 2


def test_it_is_not_tried_for_ever() -> None:
    managed = Managed("worker 0", Starts(100))
    for _ in range(4):
        managed.start()
    words = r"worker 0 cannot be started: \[Errno 11\] .* unavailable, 5 times in a row"
    with pytest.raises(CannotStart, match=words):
        managed.start()


class Beating:
    """Stands in for a process that reports its life, or does not any more."""

    def __init__(self) -> None:
        self.beats = self.has_begun = False
        self.received: list[str] = []

    def has_beaten(self) -> bool:
        self.beats = self.beats or self.has_begun
        return self.has_begun

    def send_signal(self, number: int) -> None:
        self.received.append(signal.Signals(number).name)

    def kill_group(self) -> None:
        self.received.append("SIGKILL")


class Watched:
    """A process, and what watching it for some seconds does to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, startup_seconds: float = math.inf) -> None:
        self._now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self._now)
        self.process = Beating()
        starts = Starts(0)
        starts.process = self.process
        self.managed = Managed("worker 0", starts, startup_seconds)
        self.managed.start()

    def after(self, seconds: float, step: float = 0.5) -> list[str]:
        self.process.received.clear()
        for _ in range(int(seconds / step)):
            self._now += step
            self.managed.watch()
        return self.process.received


def test_one_that_falls_silent_is_killed_once_its_stacks_are_printed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(monkeypatch)
    watched.process.has_begun = True
    assert watched.after(3600) == []
    watched.process.has_begun = False
    assert watched.after(59.5) == []
    assert watched.after(0.5) == ["SIGUSR1"]
    assert watched.after(0.5) == []
    assert watched.after(0.5) == ["SIGKILL"]
    assert caplog.text.count("worker 0 is hung: no sign of life for 60 s; its stacks follow") == 1
    watched.managed.start()  # another one is not blamed for it
    assert watched.after(30) == []


def test_one_that_never_beats_is_none_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(monkeypatch).after(3600) == []


def test_one_that_hangs_before_it_serves_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, startup_seconds=300)
    assert watched.after(299.5) == []
    assert watched.after(1.5) == ["SIGUSR1", "SIGKILL"]


def test_time_in_which_nobody_ran_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a machine that was asleep: who watches is as late as who should have beaten."""
    watched = Watched(monkeypatch)
    watched.process.has_begun = True
    watched.after(1)
    watched.process.has_begun = False
    assert watched.after(7200, step=3600) == []
    watched.process.has_begun = True
    assert watched.after(10) == []


def test_a_start_that_fails_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ChildProcess(["-m", "nothing"], {})
    assert len(os.listdir("/proc/self/fd")) == before
