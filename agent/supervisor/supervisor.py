"""The supervisor: the small process at the root of the tree.

It starts the engine cores and the API process, starts them again when they die, kills a core
whose step hangs and an API process whose event loop does, and turns the first SIGTERM or SIGINT
into a drain, and the second, or SIGQUIT, into a stop.
It imports neither torch nor any web framework, so there is little in it that can fail.
"""

import contextlib
import ctypes
import enum
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pagelet.agent.supervisor.managed import ManagedCore
from pagelet.agent.supervisor.startup_view import StartupView
from pagelet.process.backoff import starting_again
from pagelet.process.managed import Managed
from pagelet.process.proc import describe_exit
from pagelet.process.signals import CUT_OFF, CUT_OFF_SECONDS, SignalQueue
from pagelet.protocol.exit_codes import EXIT_CONFIGURATION

_PR_SET_CHILD_SUBREAPER = 36
_TICK_SECONDS = 0.5
_WATCHED_TICK_SECONDS = 0.1
_DRAIN_MARGIN_SECONDS = 10.0
_STOP_SECONDS = 5.0
_SAME_REQUEST_SECONDS = 0.5
"""A signal so soon after the first is the same wish to stop: a terminal and a wrapper such as make
or a shell both pass it on."""

log = logging.getLogger(__name__)


class StartError(Exception):
    """The server cannot run as it is configured, or keeps crashing.

    `exit_code` is for the shell.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class _Phase(enum.Enum):
    RUNNING = enum.auto()
    DRAINING = enum.auto()
    CUTTING_OFF = enum.auto()
    """Requests are ended with errors."""
    STOPPING = enum.auto()


class Supervisor:
    """Runs one API process and its engine cores until told to stop."""

    def __init__(
        self,
        api: Managed,
        cores: Sequence[ManagedCore],
        *,
        drain_timeout: float,
        view: StartupView,
    ) -> None:
        self._api = api
        self._cores = list(cores)
        self._all: list[Managed] = [*self._cores, api]
        self._drain_timeout = drain_timeout
        self._view = view
        self._announced = False
        self._phase = _Phase.RUNNING
        self._deadline = 0.0  # of the phase
        self._drain_began = 0.0
        self._exit_code = 0

    def run(self) -> int:
        """Blocks until everything has ended; returns the exit code: 0 after a drain, 1 if it ran
        out of time or was not finished for another reason.

        Raises `StartError` once everything has ended because a process cannot work as configured
        (exit code 78) or keeps crashing (1), and `CannotStart`.
        """
        _become_subreaper()
        with SignalQueue() as signals:
            try:
                for managed in self._all:
                    managed.start()
                while not self._stopped():
                    for number in signals.wait(self._tick_seconds()):
                        self._handle_signal(number)
                    self._reap()
                    self._tick()
            finally:
                self._view.close()
                self._kill_everything()
        return self._exit_code

    def _tick_seconds(self) -> float:
        """A late look at a deadline does no harm, but a person watches how it starts and ends."""
        watched = not self._announced or self._phase is _Phase.CUTTING_OFF
        return _WATCHED_TICK_SECONDS if watched else _TICK_SECONDS

    def _stopped(self) -> bool:
        return self._phase is _Phase.STOPPING and all(m.process is None for m in self._all)

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            log.info("SIGHUP ignored: API keys in a file are read again on their own")
        elif number == CUT_OFF:
            self._cut_off("SIGQUIT", number)
        elif number in (signal.SIGTERM, signal.SIGINT):
            name = signal.Signals(number).name
            if self._phase is _Phase.RUNNING:
                self._drain()  # whoever reads of it may count the time to the next signal from then
                log.info(
                    "%s: draining, for at most %g s; send it again to stop at once",
                    name,
                    self._drain_timeout,
                )
            elif time.monotonic() - self._drain_began >= _SAME_REQUEST_SECONDS:
                self._cut_off(f"{name} again", number)

    def _cut_off(self, what: str, number: int) -> None:
        if self._phase is _Phase.CUTTING_OFF:
            return
        log.warning("%s: stopping at once", what)
        self._exit_code = 128 + number
        self._view.close()
        for managed in self._all:
            managed.restart_at = None
        if self._phase is _Phase.STOPPING or not self._api.is_ready():  # nobody waits for answers
            self._kill()
        else:
            self._phase = _Phase.CUTTING_OFF
            self._deadline = time.monotonic() + CUT_OFF_SECONDS
            self._api.terminate(CUT_OFF)

    def _kill(self) -> None:
        self._phase = _Phase.STOPPING
        for managed in self._all:
            managed.kill()

    def _drain(self) -> None:
        self._phase = _Phase.DRAINING
        self._drain_began = time.monotonic()
        self._deadline = self._drain_began + self._drain_timeout + _DRAIN_MARGIN_SECONDS
        self._view.close()
        for managed in self._all:
            managed.restart_at = None
        if not self._api.is_ready():  # no request has come in yet
            self._stop_cores()
        self._api.terminate()

    def _stop_cores(self) -> None:
        self._phase = _Phase.STOPPING
        self._deadline = time.monotonic() + _STOP_SECONDS
        for core in self._cores:
            core.terminate()

    def _reap(self) -> None:
        """Takes the exits of all children that have ended, and of orphans that came to us."""
        by_pid = {m.process.pid: m for m in self._all if m.process is not None}
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            managed = by_pid.pop(info.si_pid, None)
            if managed is None:
                os.waitpid(info.si_pid, 0)
            else:
                self._handle_exit(managed, *managed.reap())

    def _handle_exit(self, managed: Managed, returncode: int, failure: str | None) -> None:
        ended = f"{managed.name} ended with {describe_exit(returncode)}"
        if self._phase is _Phase.STOPPING:
            log.debug(ended)
        elif self._phase is _Phase.CUTTING_OFF:
            log.debug(ended)
            if managed is self._api:
                self._kill()
        elif self._phase is _Phase.DRAINING:
            if managed is self._api:
                if returncode == 0:
                    log.info("%s: drained", ended)
                else:
                    log.error("%s: not drained, requests were cut off", ended)
                    self._exit_code = 1
                self._stop_cores()
            else:
                log.error("%s while draining: its requests are lost", ended)
        elif returncode == EXIT_CONFIGURATION and not self._announced:
            raise StartError(failure or f"{ended}; its log above says why", EXIT_CONFIGURATION)
        else:  # what has worked as it is configured may again: a folder may be away for a while
            delay = managed.record_failure()
            ended = f"{ended}: {failure}" if failure else ended
            if delay is None:
                raise StartError(
                    f"{ended}, {managed.failures} times in a row; its log above says why", 1
                )
            log.error("%s; %s", ended, starting_again(delay, managed.failures))

    def _tick(self) -> None:
        now = time.monotonic()
        if self._phase is _Phase.RUNNING:
            for managed in self._all:
                if managed.restart_at is not None and now >= managed.restart_at:
                    managed.start()
            self._announce()
        if self._phase is not _Phase.STOPPING:
            for managed in self._all:
                managed.watch()
        if self._phase is not _Phase.RUNNING and now >= self._deadline:
            if self._phase is _Phase.DRAINING:
                log.error("not drained after %g s: stopping", self._drain_timeout)
                self._exit_code = 1
            self._kill()

    def _announce(self) -> None:
        newly_ready = [m for m in self._all if m.ready_since is None and m.is_ready()]
        if self._announced:
            for managed in newly_ready:
                log.info("%s serves again", managed.name)
            return
        self._view.show([(m.name, m.stage()) for m in self._all])
        if all(managed.is_ready() for managed in self._all):
            self._announced = True
            beats = [core.beat() for core in self._cores]
            assert self._api.process is not None
            name = self._api.process.serving or ""
            self._view.announce(name, [beat.kv_cache_tokens for beat in beats if beat])

    def _kill_everything(self) -> None:
        """Ends whatever is left and reaps it, adopted orphans too."""
        for managed in self._all:
            managed.kill()
        for managed in self._all:
            if managed.process is not None:
                managed.reap()
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                _kill_children()
                time.sleep(0.01)


def _kill_children() -> None:
    own = os.getpid()
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def _become_subreaper() -> None:
    """Orphans below us come to us, not to init, so that we can reap them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
