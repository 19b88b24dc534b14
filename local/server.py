"""A server process that is started again when it dies: a replica, or the router."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from pagelet.local import probe
from pagelet.local.command import Command
from pagelet.local.log_files import RotatingLog
from pagelet.local.rollout import Phase
from pagelet.process.backoff import CrashBackoff, starting_again
from pagelet.process.proc import describe_exit
from pagelet.process.silence import SILENT_SECONDS, Silence
from pagelet.protocol.exit_codes import EXIT_CONFIGURATION, EXIT_USAGE

_STARTING_POLL_SECONDS = 0.1
_POLL_SECONDS = 1.0
_KILL_MARGIN_SECONDS = 10.0
"""What a server gets beyond its own limit for a drain."""

log = logging.getLogger(__name__)


class Server:
    """Call `begin`, and in the end `drain`, `cut_off` or `kill`; then `ended` will be set."""

    ready_path = "/ready"

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        port: int,
        output: RotatingLog,
        *,
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        startup_seconds: float,
        drain_seconds: float,
        on_change: Callable[[], None],
    ) -> None:
        """`pagelet ARGUMENTS` listens on `port`, and inherits `pass_fds`. `on_change` is told of
        every new phase."""
        self.name = name
        self.port = port
        self.phase = Phase.STARTING
        self.reason = ""
        """Why it is not ready, in its own last words; empty until something went wrong."""
        self.restarts = 0
        self.ended = asyncio.Event()
        self._arguments = list(arguments)
        self._output = output
        self._environment = environment
        self._pass_fds = pass_fds
        self._startup_seconds = startup_seconds
        self._drain_seconds = drain_seconds
        self._on_change = on_change
        self._backoff = CrashBackoff()
        self._command: Command | None = None
        self._ready_since: float | None = None
        self._has_worked = False  # in one of its lives
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def ready_seconds(self) -> float:
        """How long ago its process was ready for the first time; 0 if it was not yet."""
        return 0.0 if self._ready_since is None else time.monotonic() - self._ready_since

    @property
    def has_served(self) -> bool:
        """Whether its process lives and was ready, even if it drains or is not ready any more."""
        return self._command is not None and self._ready_since is not None

    @property
    def last_lines(self) -> list[str]:
        """What the process that runs wrote last, since it was ready if it was."""
        return self._output.tail

    @property
    def pid(self) -> int | None:
        """Of its process, while there is one."""
        return self._command.pid if self._command else None

    def begin(self) -> None:
        """Starts it, and starts it again whenever it dies."""
        self._task = asyncio.create_task(self._run())

    def drain(self, notice_seconds: float = 0.0) -> None:
        """Lets it finish what runs, and end; after a while in which others can be told."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._set_phase(Phase.DRAINING)
        if self._command is not None:
            loop = asyncio.get_running_loop()
            loop.call_later(notice_seconds, self._command.terminate)
            loop.call_later(notice_seconds + self._drain_seconds + _KILL_MARGIN_SECONDS, self.kill)

    def cut_off(self, seconds: float) -> None:
        """Ends it at once, for good, once it has told its clients, for which it has so long."""
        self._stopping.set()
        if self._command is not None and self.has_served:
            self._command.cut_off()
            asyncio.get_running_loop().call_later(seconds, self.kill)
        else:
            self.kill()

    def kill(self) -> None:
        """Ends it at once, for good, with nothing said."""
        self._stopping.set()
        if self._command is not None:
            self._command.kill()

    def is_ready(self, status: int) -> bool:
        """Whether it serves, by the status of its answer at `ready_path`."""
        return status == 200

    def why_not_ready(self, body: str) -> str:
        """Why it serves no more while its process lives, by its answer at `ready_path` and by
        `last_lines`; empty if nothing tells."""
        return ""

    def explain(self, words: str) -> str:
        """Its last words, as whoever wrote the file understands them."""
        return words

    async def look(self) -> None:
        """Called about every second while it serves; for subclasses."""

    async def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    returncode = await self._live_once()
                except OSError as error:  # no memory, process or file is left for it
                    await self._back_off(f"cannot be started: {error.strerror or error}")
                    continue
                if self._stopping.is_set():
                    words = "drained" if returncode == 0 else describe_exit(returncode)
                    log.info("%s: ended (%s)", self.name, words)
                else:
                    await self._after_death(returncode)
        finally:
            self._output.close()
            self._set_phase(Phase.STOPPED)
            self.ended.set()

    async def _live_once(self) -> int:
        """From a start to its exit code. Raises OSError if it cannot be started now."""
        self._ready_since = None
        self._set_phase(Phase.STARTING)
        command = await Command.start(
            self._arguments, self._output, self._environment, self._pass_fds
        )
        self._command = command
        log.info("%s: starting (pid %d, port %d)", self.name, command.pid, self.port)
        if self._stopping.is_set():  # told so while it started
            command.kill()
        watch = asyncio.create_task(self._watch(command))
        try:
            return await command.wait()
        finally:
            self._command = None
            watch.cancel()
            await asyncio.wait([watch])

    async def _after_death(self, returncode: int) -> None:
        """Waits until it may start again, which is never if that could not help. What has worked
        as it is configured may do so again: the model's folder may be away for a while."""
        ended = describe_exit(returncode)
        last_line = next((line for line in reversed(self.last_lines) if line.strip()), "")
        last_words = self.explain(last_line.removeprefix("Error: ")) if returncode > 0 else ""
        if returncode in (EXIT_CONFIGURATION, EXIT_USAGE) and not self._has_worked:
            self.reason = last_words or ended
            log.error("%s: cannot work: %s", self.name, self.reason)
            self._set_phase(Phase.FAILED)
            await self._stopping.wait()
            return
        told = f"{ended}: {last_words}" if last_words else ended
        await self._back_off(f"ended with {told}")

    async def _back_off(self, what: str) -> None:
        """Waits for longer and longer, or until it is to stop; `what` happened to it."""
        delay = self._backoff.record_failure(self.ready_seconds)
        self.reason = f"{what}; {starting_again(delay, self._backoff.failures)}"
        log.error("%s: %s", self.name, self.reason)
        self._set_phase(Phase.BACKING_OFF)
        try:
            await asyncio.wait_for(self._stopping.wait(), delay)
        except TimeoutError:
            self.restarts += 1

    async def _watch(self, command: Command) -> None:
        """Keeps `phase` true while the process lives, and kills it if it hangs."""
        began, silence = time.monotonic(), Silence()
        while True:
            answer = await probe.get(self.port, self.ready_path)
            now = time.monotonic()
            silent = silence.look(answer is not None, now)
            if answer is not None:
                self._note(*answer, now - began)
            if self._ready_since is None and now - began > self._startup_seconds:
                log.error("%s: not ready after %g s: killed", self.name, self._startup_seconds)
                command.kill()
            elif self._ready_since is not None and silent > SILENT_SECONDS:
                log.error("%s: no answer for %g s: killed", self.name, SILENT_SECONDS)
                command.kill()
            if self._ready_since is None:
                await asyncio.sleep(_STARTING_POLL_SECONDS)
            else:
                await self.look()
                await asyncio.sleep(_POLL_SECONDS)

    def _note(self, status: int, body: str, seconds: float) -> None:
        if self._stopping.is_set():
            return
        ready = self.is_ready(status)
        if ready and self.phase is not Phase.READY:
            self.reason = ""
            self._output.forget()  # what it said until now explains nothing that comes later
            if self._ready_since is None:
                self._ready_since = time.monotonic()
                self._has_worked = True
                log.info("%s: ready after %.1f s", self.name, seconds)
            else:
                log.info("%s: ready again", self.name)
            self._set_phase(Phase.READY)
        elif not ready and self._ready_since is not None:
            self.reason = self.why_not_ready(body) or self.reason
            if self.phase is Phase.READY:
                log.warning(
                    "%s: not ready any more: %s", self.name, self.reason or "it does not say why"
                )
                self._set_phase(Phase.STARTING)

    def _set_phase(self, phase: Phase) -> None:
        if phase is not self.phase:
            self.phase = phase
            self._on_change()
