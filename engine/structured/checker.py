"""Refuses grammars that cannot be compiled within limits, before an engine core sees them.

Each worker thread has a process of its own to try grammars in, which is killed when one takes too
long. Verdicts are kept, and shared by content.
"""

import contextlib
import math
import socket
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from pagelet.engine.structured.check_process import CheckLaunch, Verdict
from pagelet.process.child import ChildProcess
from pagelet.process.frames import recv_frame, send_frame
from pagelet.process.proc import describe_exit
from pagelet.protocol.config import EngineOptions
from pagelet.protocol.errors import InvalidRequest
from pagelet.protocol.structured import Grammar

_WORKERS: Final = 2
_MOST_VERDICTS: Final = 4096
_RETRY_SECONDS: Final = 60.0
_LOAD_SECONDS: Final = 60.0
"""For a process to be there, and for a library to be imported."""


class GrammarChecker:
    """`check` from any thread; processes start with the first grammar."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._threads = ThreadPoolExecutor(_WORKERS, "grammar-check")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, Future[str]] = OrderedDict()
        self._retry_at: dict[bytes, float] = {}
        """When grammars may be tried again that ran into a limit, perhaps of a busy machine."""
        self._processes: list[_CheckProcess] = []

    def check(self, grammar: Grammar) -> Future[str]:
        """What is wrong with a grammar; empty if nothing is."""
        with self._lock:
            key = grammar.key
            verdict = self._verdicts.get(key)
            if verdict is None or self._retry_at.get(key, math.inf) < time.monotonic():
                self._retry_at.pop(key, None)
                verdict = self._verdicts[key] = self._threads.submit(self._check, grammar)
                if len(self._verdicts) > _MOST_VERDICTS:
                    dropped, _ = self._verdicts.popitem(last=False)
                    self._retry_at.pop(dropped, None)
            self._verdicts.move_to_end(key)
            return verdict

    def close(self) -> None:
        """Ends the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    def _check(self, grammar: Grammar) -> str:
        process: _CheckProcess | None = getattr(self._own, "process", None)
        if process is None:
            process = self._own.process = _CheckProcess(self._options)
            self._processes.append(process)
        error, final = process.check(grammar)
        if not final:
            with self._lock:
                self._retry_at[grammar.key] = time.monotonic() + _RETRY_SECONDS
        return error


def refuse(grammar_error: str, param: str) -> InvalidRequest:
    """The error for a client whose grammar has a fault."""
    return InvalidRequest(f"{param}: {grammar_error}", param, "invalid_grammar")


class _CheckProcess:
    """A process that is started again after each grammar that it died of. For one thread, which
    must live as long as the process."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._child: ChildProcess | None = None
        self._socket: socket.socket | None = None
        self._decoder = msgspec.msgpack.Decoder(Verdict)

    def check(self, grammar: Grammar) -> tuple[str, bool]:
        """What is wrong with a grammar, and whether that is so for good."""
        limits = self._options.structured
        try:
            sock = self._connect()
            send_frame(sock, grammar)
            if grammar.backend == "xgrammar":
                sock.settimeout(_LOAD_SECONDS)
                recv_frame(sock, self._decoder)
            sock.settimeout(limits.compile_seconds)
            return recv_frame(sock, self._decoder).error, True
        except TimeoutError:
            self._kill()
            seconds = limits.compile_seconds
            return f"it takes more than {seconds:g} s to compile; make it simpler", False
        except (OSError, EOFError):
            return f"it cannot be compiled ({self._kill()}); make it simpler", False

    def close(self) -> None:
        self._kill()

    def _connect(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair()
            with theirs:
                launch = CheckLaunch(
                    options=self._options,
                    memory_bytes=self._options.structured.compile_memory_bytes,
                    requests_fd=theirs.fileno(),
                )
                self._child = ChildProcess(
                    ["-m", "pagelet.engine.structured.check_process"],
                    launch,
                    pass_fds=[launch.requests_fd],
                )
            self._socket = ours
            ours.settimeout(_LOAD_SECONDS)
            recv_frame(ours, self._decoder)
        return self._socket

    def _kill(self) -> str:
        """How the process ended."""
        child, self._child = self._child, None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if child is None:
            return "it is not running"
        with contextlib.suppress(Exception):
            child.wait(0.2)
        child.kill_group()
        child.wait()
        child.close()
        return describe_exit(child.returncode)
