"""Refuses grammars that cannot be compiled within limits, before an engine core sees them.

For each library a process tries grammars (`check_lanes`), started with the first one. Verdicts are
kept, and shared by content.
"""

import contextlib
import functools
import itertools
import math
import queue
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import msgspec

from pagelet.engine.structured.check_lanes import Answer, Task
from pagelet.engine.structured.check_process import CheckLaunch
from pagelet.process.child import ChildProcess
from pagelet.process.frames import recv_frame, send_frame
from pagelet.process.proc import describe_exit
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.structured import Grammar, GrammarBackend

_MOST_VERDICTS: Final = 4096
_RETRY_SECONDS: Final = 60.0
_LOAD_SECONDS: Final = 60.0
"""For a process to be there, with its library."""
_CLOSE_SECONDS: Final = 2.0


OnAnswer = Callable[[Answer], None]


class Verdict(msgspec.Struct, frozen=True):
    """What is wrong with a grammar, and what it costs."""

    error: str
    """Empty if nothing is."""
    slow: bool
    """Whether it takes more than a moment to compile."""


class GrammarChecker:
    """`check` from any thread; processes start with the first grammar."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Future[Verdict]] = OrderedDict()
        self._retry_at: dict[bytes, float] = {}
        """When grammars may be tried again that ran into a limit, perhaps of a busy machine."""
        self._processes: dict[GrammarBackend, _CheckProcess] = {}

    def check(self, grammar: Grammar) -> Future[Verdict]:
        """Whether a grammar may be used."""
        with self._lock:
            key = grammar.key
            verdict = self._verdicts.get(key)
            if verdict is None or self._retry_at.get(key, math.inf) < time.monotonic():
                self._retry_at.pop(key, None)
                verdict = self._verdicts[key] = Future()
                on_answer = functools.partial(self._end, key, verdict)
                self._process(grammar.backend).put(grammar, on_answer)
                if len(self._verdicts) > _MOST_VERDICTS:
                    dropped, _ = self._verdicts.popitem(last=False)
                    self._retry_at.pop(dropped, None)
            self._verdicts.move_to_end(key)
            return verdict

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes.values():
            process.close()

    def _process(self, backend: GrammarBackend) -> "_CheckProcess":
        process = self._processes.get(backend)
        if process is None:
            process = self._processes[backend] = _CheckProcess(self._options, backend)
        return process

    def _end(self, key: bytes, verdict: Future[Verdict], answer: Answer) -> None:
        with self._lock:
            if not answer.final and self._verdicts.get(key) is verdict:
                self._retry_at[key] = time.monotonic() + _RETRY_SECONDS
        verdict.set_result(Verdict(answer.error, answer.slow))


def refuse(grammar_error: str, param: str) -> InvalidRequest:
    """The error for a client whose grammar has a fault."""
    return InvalidRequest(f"{param}: {grammar_error}", param, "invalid_grammar")


class _CheckProcess:
    """A process for one library's grammars, started again if it ends."""

    def __init__(self, options: EngineOptions, backend: GrammarBackend) -> None:
        self._options = options
        self._backend = backend
        self._inbox = queue.SimpleQueue[tuple[Grammar, OnAnswer] | None]()
        # It lives as long as the processes that it starts, which die with it.
        self._thread = threading.Thread(target=self._run, name="grammar-check", daemon=True)
        self._thread.start()

    def put(self, grammar: Grammar, on_answer: OnAnswer) -> None:
        """`on_answer` is called from another thread, once."""
        self._inbox.put((grammar, on_answer))

    def close(self) -> None:
        """Ends the process; one that still loads ends with this process."""
        self._inbox.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        connection: _Connection | None = None
        while (item := self._inbox.get()) is not None:
            if connection is None or not connection.alive:
                try:
                    connection = _Connection(self._options, self._backend)
                except (OSError, EOFError) as error:
                    connection = None
                    item[1](Answer(0, f"it cannot be compiled now ({error})", False, False))
                    continue
            connection.send(*item)
        if connection is not None:
            connection.close()


class _Connection:
    """A running process, and what waits for its answers. Start it from a thread that lives as long
    as the process shall."""

    def __init__(self, options: EngineOptions, backend: GrammarBackend) -> None:
        """Waits until the process works. Raises `OSError` or `EOFError` if it does not."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            launch = CheckLaunch(options=options, backend=backend, tasks_fd=theirs.fileno())
            self._child = ChildProcess(
                ["-m", "pagelet.engine.structured.check_process"],
                launch,
                pass_fds=[launch.tasks_fd],
            )
        self._decoder = msgspec.msgpack.Decoder(Answer)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, OnAnswer] = {}
        self.alive = True
        self._socket.settimeout(_LOAD_SECONDS)
        try:
            recv_frame(self._socket, self._decoder)
        except (OSError, EOFError):
            self._reap()
            raise
        self._socket.settimeout(None)
        self._reader = threading.Thread(target=self._read, name="grammar-answers", daemon=True)
        self._reader.start()

    def send(self, grammar: Grammar, on_answer: OnAnswer) -> None:
        """Sends a task."""
        number = next(self._numbers)
        with self._lock:
            alive = self.alive
            if alive:
                self._waiting[number] = on_answer
        if not alive:
            on_answer(_lost(number, "it has ended"))
            return
        with contextlib.suppress(OSError):  # the process ended: the reader tells
            send_frame(self._socket, Task(number, grammar))

    def close(self) -> None:
        """Ends the process; what waits gets an error."""
        self._child.kill_group()
        self._reader.join()

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                answer = recv_frame(self._socket, self._decoder)
                with self._lock:
                    on_answer = self._waiting.pop(answer.number)
                on_answer(answer)
        how = self._reap()
        with self._lock:
            self.alive = False
            lost = list(self._waiting.items())
        for number, on_answer in lost:
            on_answer(_lost(number, how))

    def _reap(self) -> str:
        """How the process ended."""
        self._child.kill_group()
        self._child.wait()
        self._child.close()
        self._socket.close()
        return describe_exit(self._child.returncode)


def _lost(number: int, how: str) -> Answer:
    error = f"the process that tries grammars has ended ({how}); try again"
    return Answer(number, error, final=False, slow=False)
