"""The processes of one machine: started in order, restarted when they die, stopped in reverse."""

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cluster.sandbox import SandboxFailed, wait_until

_STOP_SECONDS: Final = 20.0
_RESTART_SECONDS: Final = 1.0
_LOG_TAIL: Final = 2000


class Supervisor:
    """Logs are `LOGS/NAME.log`."""

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._commands: dict[str, Sequence[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def start(
        self, command: Mapping[str, Sequence[str]], ready: Callable[[], bool], seconds: float = 120
    ) -> None:
        """Starts processes by name and waits until `ready()`. Raises `SandboxFailed`, with the end
        of the log of one that died."""
        self._commands.update(command)
        started = {name: self._launch(name) for name in command}

        def ready_or_dead() -> bool:
            return ready() or any(process.poll() is not None for process in started.values())

        try:
            wait_until(f"the start of {', '.join(command)}", ready_or_dead, seconds)
            for name, process in started.items():
                if process.poll() is not None:
                    raise SandboxFailed(f"{name} ended with code {process.returncode}")
        except SandboxFailed as error:
            tails = "\n".join(f"--- {name}.log\n{self._tail(name)}" for name in command)
            raise SandboxFailed(f"{error}\n{tails}") from None
        finally:
            with self._lock:
                self._running.update(started)

    def stop(self, name: str) -> None:
        """Stops one process until `resume`, as a failure of that part of the cluster."""
        with self._lock:
            process = self._running.pop(name)
        self._end(process)

    def resume(self, name: str) -> None:
        """Starts again what `stop` stopped."""
        with self._lock:
            self._running[name] = self._launch(name)

    def stop_all(self) -> None:
        """In the reverse order of their start."""
        self._stopping.set()
        self._watcher.join()
        for name in reversed(list(self._running)):
            self._end(self._running.pop(name))

    def _launch(self, name: str) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self._commands[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _tail(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text(errors="replace")[-_LOG_TAIL:]

    def _watch(self) -> None:
        while not self._stopping.wait(_RESTART_SECONDS):
            with self._lock:
                for name, process in list(self._running.items()):
                    if process.poll() is not None:
                        self._running[name] = self._launch(name)
