"""A process that cannot be started now is started when it can, and not for ever."""

import gc
import os
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


def test_a_start_that_fails_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ChildProcess(["-m", "nothing"], {})
    assert len(os.listdir("/proc/self/fd")) == before
