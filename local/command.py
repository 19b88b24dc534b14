"""A command of ours as a child process: it ends with this one, and its output goes to a log."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from pagelet.local.log_files import RotatingLog
from pagelet.process.proc import kill_group
from pagelet.process.signals import CUT_OFF

_PIPE_BYTES = 64 << 10
_LAST_WORDS_SECONDS = 1.0


class Command:
    """`pagelet ARGUMENTS` in a process group of its own, which keeps a terminal's Ctrl-C away."""

    def __init__(self, process: asyncio.subprocess.Process, log: RotatingLog) -> None:
        self._process = process
        self._copying = asyncio.create_task(self._copy(log))

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        log: RotatingLog,
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
    ) -> "Command":
        """Starts it. `environment` is added to this process's own, and it inherits `pass_fds`. Call
        from the main thread: the child ends with the thread that started it."""
        log.forget()
        process = await asyncio.create_subprocess_exec(
            # -P: the folder that the user happens to be in must not shadow any import.
            *(sys.executable, "-P", "-m", "pagelet.process.tied", str(os.getpid())),
            *("pagelet.cli", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environment},
            pass_fds=pass_fds,
            process_group=0,
        )
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Of the group's first process."""
        return self._process.pid

    async def wait(self) -> int:
        """The exit code, as `subprocess` has it, once its last words are in the log."""
        returncode = await self._process.wait()
        # What it left behind may hold the pipe for longer than it lived.
        await asyncio.wait([self._copying], timeout=_LAST_WORDS_SECONDS)
        self._copying.cancel()
        return returncode

    def terminate(self) -> None:
        """Asks it to drain and end."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def cut_off(self) -> None:
        """Asks it to end at once, and to tell its clients."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(CUT_OFF)

    def kill(self) -> None:
        """Ends it at once; its own children end with it."""
        if self._process.returncode is None:
            kill_group(self._process.pid)

    async def _copy(self, log: RotatingLog) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(_PIPE_BYTES):
            log.write(data)
        log.flush()
