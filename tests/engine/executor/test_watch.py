"""Which ranks hang and which are only busy, on a clock of the test's own."""

import os
import signal
import subprocess
import sys

import pytest

from pagelet.engine.executor.progress import COMPUTING, IDLE, Progress
from pagelet.engine.executor.topology import RankPlace
from pagelet.engine.executor.watch import BEAT_SECONDS, RankWatch, is_stopped
from support.processes import wait_for

DETECTED_SECONDS = 5.0
"""What users are promised."""


class Ranks:
    """Two stages of two ranks whose heartbeats the test sends."""

    def __init__(self, *, one_machine: bool = True) -> None:
        self.now = 100.0
        self.stopped: set[int] = set()
        self.states = [(COMPUTING, 0)] * 4
        self.silent: set[int] = set()
        places = [RankPlace(rank=rank, tp_size=2, pp_size=2) for rank in range(4)]
        self.watch = RankWatch(
            places,
            lambda rank: rank in self.stopped,
            one_machine=one_machine,
            clock=lambda: self.now,
        )

    def run(self, seconds: float) -> tuple[float, str | None]:
        """Lets time pass; when a fault was found, after how long, and which."""
        began = self.now
        while self.now - began < seconds:
            self.now += BEAT_SECONDS
            for rank in set(range(4)) - self.silent - self.stopped:
                self.watch.beat(rank, *self.states[rank])
            if (fault := self.watch.fault()) is not None:
                return self.now - began, fault
        return seconds, None


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_a_step_may_take_as_long_as_it_takes(ranks: Ranks) -> None:
    ranks.states = [(COMPUTING, 4), ("all_reduce", 3), ("rank 0 to send", 9), (IDLE, 7)]
    assert ranks.run(3600) == (3600, None)


def test_a_stopped_process_is_named_in_time(ranks: Ranks) -> None:
    ranks.run(10)
    ranks.states[3] = ("all_reduce", 5)
    ranks.run(1)
    ranks.stopped = {3}
    after, fault = ranks.run(60)
    assert after < DETECTED_SECONDS
    assert fault is not None
    assert fault.startswith("rank 3 (pipeline stage 1, tensor rank 1) hangs: a signal has stopped")
    assert fault.endswith("it was last waiting for all_reduce")


def test_a_silent_process_is_given_time(ranks: Ranks) -> None:
    """It may be starved of the processor, or import something large."""
    ranks.silent = {1}
    assert ranks.run(30) == (30, None)
    ranks.silent = set()
    assert ranks.run(50) == (50, None)
    ranks.silent = {1}
    _, fault = ranks.run(90)
    assert fault is not None
    assert fault.startswith("rank 1 (pipeline stage 0, tensor rank 1) hangs: its process has been")


def test_ranks_that_wait_for_one_another_are_told_in_time(ranks: Ranks) -> None:
    ranks.states = [("all_reduce", 3), ("all_gather", 5), ("rank 0 to send", 9), (IDLE, 7)]
    after, fault = ranks.run(60)
    assert after < DETECTED_SECONDS
    assert fault is not None
    assert fault.startswith("the ranks wait for one another")
    assert "rank 1 (pipeline stage 0, tensor rank 1) is waiting for all_gather" in fault


def test_a_network_may_take_longer() -> None:
    ranks = Ranks(one_machine=False)
    ranks.states = [("all_reduce", 3)] * 4
    assert ranks.run(20) == (20, None)
    assert ranks.run(20)[1] is not None


@pytest.mark.parametrize("paused", [{1}, {0, 1, 2, 3}], ids=["a rank", "all"])
def test_who_did_not_run_has_not_waited(ranks: Ranks, paused: set[int]) -> None:
    """Such as a container that was frozen: what the ranks wait for comes once it runs again."""
    ranks.states = [("all_reduce", 3)] * 4
    ranks.run(2)
    ranks.silent = paused
    assert ranks.run(10) == (10, None)
    ranks.silent = set()
    assert ranks.run(3) == (3, None)
    assert ranks.run(2)[1] is not None, "it is a deadlock all the same"


def test_waits_that_end_are_no_deadlock(ranks: Ranks) -> None:
    """Seen from outside a rank may always be in the same state, and still get on."""
    for changes in range(100):
        ranks.states = [("all_reduce", changes), ("all_reduce", 1), (IDLE, 2), (IDLE, 2)]
        assert ranks.run(2)[1] is None


def test_ranks_without_work_wait_for_nobody(ranks: Ranks) -> None:
    ranks.states = [(IDLE, 1)] * 4
    assert ranks.run(3600) == (3600, None)


def test_progress_tells_states_that_come_again_from_one_that_stays() -> None:
    progress = Progress()
    assert progress.state == COMPUTING
    seen = []
    for _ in range(2):
        with progress.being("all_reduce"):
            seen.append((progress.state, progress.changes))
        assert progress.state == COMPUTING
    assert seen[0] != seen[1]


def test_a_stopped_process_is_told_from_others() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(process.pid))
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: not is_stopped(process.pid))
        process.kill()
    assert not is_stopped(process.pid)
