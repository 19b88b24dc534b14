"""Divides a server's spare time among grammars that are tried.

A grammar of usual size compiles in milliseconds. Each begins in the quick lane, and what is not
done within a quarter of a second goes on in the slow one, out of the way of those that come after
it. Workers are forked from this process, which has the vocabulary and the library loaded: a new
one, in place of one that had to be killed, costs milliseconds.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
import warnings
from collections import deque
from typing import Final

import msgspec

from pagelet.engine.structured.check_worker import Finding, Job, work
from pagelet.engine.structured.compile import Compiler
from pagelet.process.frames import FrameReader, recv_frame, send_frame
from pagelet.process.proc import describe_exit, set_parent_death_signal
from pagelet.protocol.structured import Grammar

_QUICK_WORKERS: Final = 3
_QUICK_SECONDS: Final = 0.25
_QUICK_WALL_SECONDS: Final = 1.0
"""What a grammar of the quick lane may take of a core, and how long that may last."""
_WALL_FACTOR: Final = 3
"""A grammar may take so many times its seconds of a core where engines leave little of it."""
_MOST_SLOW: Final = 8
"""Grammars that wait for the slow lane."""
_HEAD_START_SHARE: Final = 0.05
_MOST_HEAD_START: Final = 0.5
"""Grammars have a share of one core at the priority of other work, saved up for so many seconds;
beyond it they have what is left over."""
_LOOK_SECONDS: Final = 0.02


class Task(msgspec.Struct, array_like=True):
    """A grammar to try; `number` comes back with the verdict."""

    number: int
    grammar: Grammar


class Answer(msgspec.Struct, array_like=True):
    """What came of a task; `error` is empty if the grammar compiles."""

    number: int
    error: str
    final: bool
    """Whether another try would bring the same."""
    slow: bool
    """Whether it took more than a moment."""


class _Worker:
    """A forked process, and the task that it is at."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.socket = sock
        self.task: Task | None = None
        self.slow = False
        self._head_start = 0.0
        self._began = 0.0
        self._cpu_before = 0.0

    def start(self, task: Task, head_start: float) -> None:
        self.task, self._head_start = task, head_start
        self._began, self._cpu_before = time.monotonic(), self._cpu()
        with contextlib.suppress(OSError):  # it died: reading tells
            send_frame(self.socket, Job(task.grammar, head_start))

    @property
    def wall_seconds(self) -> float:
        """At its task."""
        return time.monotonic() - self._began

    @property
    def cpu_seconds(self) -> float:
        """Of its task, so far."""
        return self._cpu() - self._cpu_before

    @property
    def head_start_left(self) -> float:
        """What the task did not need of it."""
        return max(0.0, self._head_start - max(0.0, self.cpu_seconds))

    def _cpu(self) -> float:
        clock = (~self.pid << 3) | 2  # Linux's name of another process's CPU clock
        with contextlib.suppress(OSError):
            return time.clock_gettime(clock)
        return 0.0

    def end(self) -> str:
        """Ends the process, and says how it ended."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        return describe_exit(os.waitstatus_to_exitcode(status))


class CheckLanes:
    """Answers tasks that come by `sock`, in the main thread of a process."""

    def __init__(
        self, sock: socket.socket, compiler: Compiler, seconds: float, memory_bytes: int
    ) -> None:
        self._socket = sock
        self._compiler = compiler
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._reader = FrameReader(msgspec.msgpack.Decoder(Task))
        self._findings = msgspec.msgpack.Decoder(Finding)
        self._selector = selectors.DefaultSelector()
        self._selector.register(sock, selectors.EVENT_READ, None)
        self._workers: list[_Worker] = []
        self._quick: deque[Task] = deque()
        self._slow: deque[Task] = deque()
        self._head_start = _MOST_HEAD_START
        self._saved_at = time.monotonic()

    def run(self) -> None:
        """Until the other side is gone."""
        while True:
            busy = any(worker.task is not None for worker in self._workers)
            for key, _ in self._selector.select(_LOOK_SECONDS if busy else None):
                if key.data is not None:
                    self._read(key.data)
                    continue
                data = self._socket.recv(1 << 16)
                if not data:
                    return
                self._quick.extend(self._reader.feed(data))
            for worker in list(self._workers):
                if worker.task is not None:
                    self._bound(worker, worker.task)
            self._assign()

    def _read(self, worker: _Worker) -> None:
        """Takes what a worker found."""
        task, slow = worker.task, worker.slow
        if worker.task is not None:
            self._head_start += worker.head_start_left
        try:
            finding = recv_frame(worker.socket, self._findings)
        except (EOFError, OSError):
            how = self._end(worker)
            if task is not None:
                self._answer(task, f"it cannot be compiled ({how}); make it simpler", slow=slow)
            return
        assert task is not None
        worker.task = None
        if slow:
            self._end(worker)
        self._answer(task, finding.error, final=True, slow=slow)

    def _bound(self, worker: _Worker, task: Task) -> None:
        """Moves a task that takes long out of the way, and ends one that takes too long."""
        cpu, wall = worker.cpu_seconds, worker.wall_seconds
        if cpu >= self._seconds or wall >= self._seconds * _WALL_FACTOR:
            self._end(worker)
            error = f"it takes more than {self._seconds:g} s to compile; make it simpler"
            self._answer(task, error, slow=True)
        elif not worker.slow and (cpu >= _QUICK_SECONDS or wall >= _QUICK_WALL_SECONDS):
            if not any(other.slow for other in self._workers):
                worker.slow = True
                return
            self._end(worker)
            if len(self._slow) < _MOST_SLOW:
                self._slow.append(task)
                return
            error = "grammars that take long are many now; make it simpler, or try again later"
            self._answer(task, error, slow=True)

    def _assign(self) -> None:
        """Gives tasks to workers that are free, and forks what is missing of them."""
        now = time.monotonic()
        saved = self._head_start + (now - self._saved_at) * _HEAD_START_SHARE
        self._head_start, self._saved_at = min(saved, _MOST_HEAD_START), now
        while self._quick:
            worker = next((each for each in self._workers if each.task is None), None)
            if worker is None:
                if sum(not each.slow for each in self._workers) >= _QUICK_WORKERS:
                    break
                worker = self._fork()
            head_start = min(max(self._head_start, 0.0), _QUICK_SECONDS)
            self._head_start -= head_start
            worker.start(self._quick.popleft(), head_start)
        if self._slow and not any(each.slow for each in self._workers):
            worker = self._fork()
            worker.slow = True
            worker.start(self._slow.popleft(), 0.0)

    def _fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        with warnings.catch_warnings():
            # Of threads: the only other one waits for this process's own parent to go.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            set_parent_death_signal(parent)
            self._selector.close()
            for sock in (self._socket, ours, *(each.socket for each in self._workers)):
                sock.close()
            work(theirs, self._compiler, self._memory_bytes)
        theirs.close()
        worker = _Worker(pid, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _end(self, worker: _Worker) -> str:
        self._selector.unregister(worker.socket)
        self._workers.remove(worker)
        return worker.end()

    def _answer(self, task: Task, error: str, *, final: bool = False, slow: bool) -> None:
        send_frame(self._socket, Answer(task.number, error, final, slow))
