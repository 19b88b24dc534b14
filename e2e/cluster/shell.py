"""Commands as a person types them, shown with what they print."""

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cluster.cache import CACHE
from cluster.kubectl import CommandFailed, helm_program, kubectl_program

REPOSITORY: Final = Path(__file__).parents[2]


class Shell:
    """Runs in the repository's root, with `kubectl` and `helm` on its path and one kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        tools = CACHE / "tools"
        tools.mkdir(parents=True, exist_ok=True)
        for name, program in (("kubectl", kubectl_program()), ("helm", helm_program())):
            link = tools / name
            link.unlink(missing_ok=True)
            link.symlink_to(program)
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{tools}:{os.environ['PATH']}",
        }

    def run(self, command: str, *, seconds: float = 600) -> str:
        """Shows a command and its output, and returns the output. Raises `CommandFailed`."""
        print(f"\n$ {command}", flush=True)
        with self._start(command) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise CommandFailed(f"{command} took more than {seconds:.0f} s") from None
        print(output, end="", flush=True)
        if process.returncode:
            raise CommandFailed(f"{command} failed with {process.returncode}:\n{output}")
        return output

    @contextlib.contextmanager
    def background(self, command: str, until: str) -> Iterator[str]:
        """Runs a command while the block does, from when it has printed a line with `until`;
        gives that line. Raises `CommandFailed`."""
        print(f"\n$ {command} &", flush=True)
        with self._start(command) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    if until in line:
                        yield line
                        return
                raise CommandFailed(f"{command} ended")
            finally:
                process.terminate()

    def _start(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            shlex.split(command),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )
