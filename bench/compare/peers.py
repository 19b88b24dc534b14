"""Servers that are compared: each is started by a script of its own in `bench/peers/`."""

import contextlib
import dataclasses
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pagelet.bench.progress import Progress
from pagelet.bench.server import PAGELET, Server, ServerFailed, free_port, running_command

SCRIPTS = Path(__file__).parents[1] / "peers"
_DEFAULT_VARIANTS = {"pagelet": "auto", "vllm": "bfloat16", "llamacpp": "Q4_0"}
_READY_PATH = "/health"
_START_SECONDS = 600.0
_LAST_LINES = 20


class PeerFailed(RuntimeError):
    """A peer cannot be installed, prepared or started; the message says why."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A server and how it is run, such as vLLM in float32."""

    name: str
    variant: str
    folder: Path
    """Where it is installed."""

    @property
    def title(self) -> str:
        """As the user names it."""
        return f"{self.name}:{self.variant}"

    def installed(self) -> bool:
        """Whether it can be started."""
        return subprocess.run(self._command("installed"), env=_environment()).returncode == 0

    def version(self) -> str:
        """Its name and version."""
        done = subprocess.run(
            self._command("version"), env=_environment(), capture_output=True, text=True
        )
        return done.stdout.strip() or self.name

    def install(self, progress: Progress) -> None:
        """Takes minutes; tells of each line that the installer writes. Raises `PeerFailed`."""
        self._run(self._command("install"), f"installing {self.name}", progress)

    def prepare(self, model: Path, models: Path, progress: Progress) -> str:
        """Writes the model under `models` in the form that the peer reads, unless it is there;
        returns its path. Raises `PeerFailed`."""
        command = [*self._command("prepare"), str(model), self.variant, str(models)]
        what = f"preparing the model for {self.title}"
        output = self._run(command, what, progress)
        if not output:
            raise PeerFailed(f"{what}: its script names no file")
        return output[-1]

    @contextlib.contextmanager
    def serving(
        self, prepared: str, slots: int, context: int, progress: Progress
    ) -> Iterator[Server]:
        """Runs the server until it is ready, with room for `slots` requests of `context` tokens
        at once; stops it at the end. Raises `PeerFailed`."""
        port = free_port()
        command = [
            *(*self._command("serve"), prepared, self.variant),
            *(str(port), str(slots), str(context)),
        ]
        with running_command(command, port, _READY_PATH) as server:
            try:
                server.wait_until_ready(
                    _START_SECONDS,
                    lambda waited: progress(f"starting {self.title}, {waited // 5 * 5:.0f} s"),
                )
            except ServerFailed as error:
                raise PeerFailed(f"{self.title}: {error}") from error
            yield server

    def _command(self, verb: str) -> list[str]:
        return ["bash", str(SCRIPTS / f"{self.name}.sh"), verb, str(self.folder)]

    def _run(self, command: list[str], what: str, progress: Progress) -> list[str]:
        """The lines that the command wrote. Raises `PeerFailed` with the last of them."""
        progress(what)
        lines: list[str] = []
        with subprocess.Popen(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.strip():
                        lines.append(line.strip())
                        progress(f"{what}: {lines[-1][:100]}")
            except BaseException:
                process.terminate()
                raise
        if process.returncode != 0:
            raise PeerFailed(f"{what} failed:\n" + "\n".join(lines[-_LAST_LINES:]))
        return lines


def parse_peer(text: str, cache: Path, folders: dict[str, Path]) -> Peer:
    """A peer from `NAME[:VARIANT]`; `folders` says where peers are that are not in `cache`.

    Raises `ValueError` with the names that there are.
    """
    name, _, variant = text.partition(":")
    known = sorted(path.stem for path in SCRIPTS.glob("*.sh"))
    if name not in known:
        raise ValueError(f"there is no peer {name!r}: give {', '.join(known)}")
    return Peer(name, variant or _DEFAULT_VARIANTS[name], folders.get(name, cache / name))


def _environment() -> dict[str, str]:
    return {**os.environ, "PAGELET": PAGELET}
