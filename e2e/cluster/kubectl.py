"""kubectl against one cluster, and where it and helm are."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cluster import programs
from cluster.cache import CACHE

_LINK: Final = CACHE / "bin" / "kubectl"


class CommandFailed(Exception):
    """kubectl, or another command, failed; the message is what it said."""


def kubectl_program() -> str:
    """Path of kubectl: the machine's own, or ours."""
    if found := shutil.which("kubectl"):
        return found
    program = programs.build(programs.KUBERNETES)
    if not (_LINK.exists() and _LINK.samefile(program)):
        _LINK.unlink(missing_ok=True)
        _LINK.hardlink_to(program)
    return str(_LINK)


def helm_program() -> str:
    """Path of helm: the machine's own, or ours."""
    return shutil.which("helm") or str(programs.build(programs.HELM))


class Kubectl:
    """Commands with the rights of a kubeconfig, in one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def command(self, *arguments: str) -> list[str]:
        """The command line of a kubectl call."""
        options = [f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}"]
        return [kubectl_program(), *options, *arguments]

    def run(self, *arguments: str, given: str | None = None, seconds: float = 120) -> str:
        """Standard output of a call. Raises `CommandFailed`."""
        return _run(self.command(*arguments), given, seconds)

    def get(self, *arguments: str) -> Any:
        """The object, or the list of objects, that `kubectl get` shows."""
        return json.loads(self.run("get", "--output=json", *arguments))

    def apply(self, *objects: Mapping[str, Any]) -> str:
        """Applies objects on the server's side."""
        listing = {"apiVersion": "v1", "kind": "List", "items": objects}
        return self.run("apply", "--server-side", "--filename=-", given=json.dumps(listing))


def _run(command: Sequence[str], given: str | None, seconds: float) -> str:
    try:
        result = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            input=given or "",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{' '.join(command)} took more than {seconds:.0f} s") from None
    if result.returncode:
        raise CommandFailed(result.stderr.strip() or result.stdout.strip())
    return result.stdout
