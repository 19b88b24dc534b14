"""The root of a router's process tree: holds the port, and starts workers again when they die or
hang."""

import functools
import logging
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from typing import Final

from pagelet.process.backoff import starting_again
from pagelet.process.listener import ListenError, bind, inherit, url
from pagelet.process.logs import configure_logging, fail
from pagelet.process.managed import CannotStart, Managed
from pagelet.process.open_files import raise_open_file_limit
from pagelet.process.proc import describe_exit
from pagelet.process.signals import CUT_OFF, CUT_OFF_SECONDS, SignalQueue
from pagelet.protocol.exit_codes import EXIT_CONFIGURATION
from pagelet.protocol.router import RouterConfig
from pagelet.router.launch import DRAIN_SIGNAL, RouterSettings, WorkerLaunch, launch_worker
from pagelet.router.tenants.counters import create_counters

_TICK_SECONDS: Final = 0.5
_CUT_OFF_TICK_SECONDS: Final = 0.1
_DRAIN_MARGIN_SECONDS: Final = 10.0
_STARTUP_SECONDS: Final = 300.0
"""For as many workers as there can be, on few cores."""
_SAME_REQUEST_SECONDS: Final = 0.5
"""A signal so soon after the first is the same wish to stop: a terminal and a wrapper such as make
or a shell both pass it on."""

log = logging.getLogger(__name__)


class _Ended(Exception):
    """A worker cannot work as it is configured, or keeps crashing."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_router(config: RouterConfig, settings: RouterSettings) -> int:
    """Routes until told to stop; returns the exit code. The last line on stderr says why it could
    not."""
    configure_logging(settings.log_level, settings.log_format, "router supervisor")
    raise_open_file_limit()
    try:
        with _listen(settings) as listener:
            counters_fd = create_counters(settings.workers)
            siblings = secrets.token_hex(8)
            workers = [
                Managed(
                    f"router worker {number}",
                    functools.partial(
                        launch_worker,
                        WorkerLaunch(
                            config=config,
                            settings=settings,
                            worker=number,
                            siblings=siblings,
                            listen_fd=listener.fileno(),
                            counters_fd=counters_fd,
                        ),
                        listener,
                    ),
                    _STARTUP_SECONDS,
                )
                for number in range(settings.workers)
            ]
            return _Supervisor(workers, config.proxy.drain_timeout, url(listener)).run()
    except ListenError as error:
        return fail(log, str(error), EXIT_CONFIGURATION, settings.log_format)
    except _Ended as error:
        return fail(log, str(error), error.exit_code, settings.log_format)
    except CannotStart as error:
        return fail(log, str(error), 1, settings.log_format)


class _Supervisor:
    def __init__(self, workers: Sequence[Managed], drain_timeout: float, url: str) -> None:
        self._workers = workers
        self._drain_timeout = drain_timeout
        self._url = url
        self._announced = False
        self._drain_began: float | None = None
        self._kill_at: float | None = None
        self._is_cut_off = False
        self._exit_code = 0

    def run(self) -> int:
        with SignalQueue() as signals:
            try:
                for worker in self._workers:
                    worker.start()
                while self._drain_began is None or any(w.process for w in self._workers):
                    seconds = _CUT_OFF_TICK_SECONDS if self._is_cut_off else _TICK_SECONDS
                    for number in signals.wait(seconds):
                        self._handle_signal(number)
                    self._reap()
                    self._tick()
            finally:
                for worker in self._workers:
                    worker.kill()
                    if worker.process is not None:
                        worker.reap()
        return self._exit_code

    def _handle_signal(self, number: int) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if number == CUT_OFF:
            self._cut_off(name, number)
        elif number not in (signal.SIGTERM, signal.SIGINT):
            return
        elif self._drain_began is None:
            seconds = self._drain_timeout
            log.info("%s: draining, for at most %g s; again to stop at once", name, seconds)
            self._end_with(DRAIN_SIGNAL, now + seconds + _DRAIN_MARGIN_SECONDS)
        elif now - self._drain_began >= _SAME_REQUEST_SECONDS:
            self._cut_off(f"{name} again", number)

    def _cut_off(self, what: str, number: int) -> None:
        if self._is_cut_off:
            return
        log.warning("%s: stopping at once", what)
        self._is_cut_off = True
        self._exit_code = 128 + number
        for worker in self._workers:
            if not worker.is_ready():  # nobody waits for its answers
                worker.kill()
        self._end_with(CUT_OFF, time.monotonic() + CUT_OFF_SECONDS)

    def _end_with(self, number: int, kill_at: float) -> None:
        """Tells the workers to end. Those that are left at that time are killed."""
        self._drain_began, self._kill_at = time.monotonic(), kill_at
        for worker in self._workers:
            worker.restart_at = None
            worker.terminate(number)

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.process is None or worker.process.poll() is None:
                continue
            returncode, failure = worker.reap()
            ended = f"{worker.name} ended with {describe_exit(returncode)}"
            if self._drain_began is not None:
                self._exit_code = self._exit_code or (1 if returncode else 0)
                log.info(ended)
            elif returncode == EXIT_CONFIGURATION and not self._announced:
                raise _Ended(failure or ended, EXIT_CONFIGURATION)
            elif returncode == 0:  # somebody told it alone to end
                log.info("%s; starting another", ended)
                worker.restart_at = time.monotonic()
            else:  # what has worked as it is configured may again: a file may be away for a while
                delay = worker.record_failure()
                ended = f"{ended}: {failure}" if failure else ended
                if delay is None:
                    raise _Ended(f"{ended}, {worker.failures} times in a row", 1)
                log.error("%s; %s", ended, starting_again(delay, worker.failures))

    def _tick(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                for worker in self._workers:
                    worker.kill()
            return
        for worker in self._workers:
            if worker.restart_at is not None and now >= worker.restart_at:
                worker.start()
            worker.watch()
        ready = [worker.is_ready() for worker in self._workers]
        if all(ready) and not self._announced:
            self._announced = True
            log.info("routing at %s", self._url)


def _listen(settings: RouterSettings) -> socket.socket:
    return bind(settings.host, settings.port) if settings.fd is None else inherit(settings.fd)
