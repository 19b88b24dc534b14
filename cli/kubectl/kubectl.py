"""The cluster, through the kubectl of whoever runs this."""

import contextlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ ")
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")
_UNKNOWN_KIND = re.compile(r"(doesn't have a resource type|could not find the requested resource)")
_SYSTEM = ("--namespace=pagelet-system", "--create-namespace")


class KubectlFailed(Exception):
    """kubectl's own words."""


class Target:
    """A namespace of a cluster; None is what kubectl is set to."""

    def __init__(self, namespace: str | None, context: str | None) -> None:
        self._flags = [] if namespace is None else [f"--namespace={namespace}"]
        self._flags += [] if context is None else [f"--context={context}"]
        self._helm_flags = [] if context is None else [f"--kube-context={context}"]

    def command(self, arguments: list[str]) -> list[str]:
        """A kubectl command line. Flags stand before `--`, behind which is another program's."""
        return ["kubectl", arguments[0], *self._flags, *arguments[1:]]

    def hint(self, command: str, name: str) -> str:
        """A command of ours as it is to be typed to reach the same place."""
        return shlex.join(["kubectl", "pagelet", command, name, *self._flags])

    def get(
        self,
        kind: str,
        name: str | None = None,
        *,
        selector: str | None = None,
        everywhere: bool = False,
    ) -> Any:
        """One object, or a list of them, of all namespaces if asked for. Raises KubectlFailed."""
        arguments = ["get", kind, *([name] if name else []), "--output=json"]
        arguments += ["--all-namespaces"] if everywhere else []
        if selector is not None:
            arguments.append(f"--selector={selector}")
        result = subprocess.run(
            self.command(arguments), check=False, capture_output=True, text=True
        )
        if result.returncode:
            raise self.failure(result.stderr)
        return json.loads(result.stdout)

    def service(self, name: str) -> Any:
        """An InferenceService. Raises KubectlFailed, as for one that is not there."""
        return self.get("inferenceservices", name)

    def pods(self, service: str, component: str) -> list[Any]:
        """Of a service: those of its `agent`s or of its `router`s. Raises KubectlFailed, also
        where there is no such service."""
        self.service(service)
        selector = f"pagelet.dev/service={service},pagelet.dev/component={component}"
        return list(self.get("pods", selector=selector)["items"])

    def run(self, arguments: list[str]) -> int:
        """Runs kubectl on this terminal; its exit code."""
        return subprocess.run(self.command(arguments), check=False).returncode

    def failure(self, stderr: str) -> KubectlFailed:
        """What kubectl said when it failed, or what helps more."""
        if _UNKNOWN_KIND.search(stderr):
            install = ["helm", "install", "pagelet", "charts/pagelet", *_SYSTEM, *self._helm_flags]
            return KubectlFailed(
                f"this cluster knows no InferenceServices: install Pagelet with "
                f"{shlex.join(install)}, or choose another cluster with --context"
            )
        # What kubectl logs on its way stands before what it has to say.
        lines = [line for line in stderr.strip().splitlines() if not _LOGGED.match(line)]
        words = "\n".join(lines) or stderr.strip()
        return KubectlFailed(re.sub(r"^(error: |Error from server \(\w+\): )", "", words))


@contextlib.contextmanager
def forwarded(target: Target, what: str, port: int) -> Iterator[int]:
    """A local port that leads to a port of a pod or Service while the block runs. Raises
    KubectlFailed."""
    command = target.command(["port-forward", what, f":{port}", "--address=127.0.0.1"])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        found = _FORWARDING.match(process.stdout.readline())
        if found is None:
            raise target.failure(process.stderr.read())
        yield int(found[1])
    finally:
        process.terminate()
        process.communicate()
