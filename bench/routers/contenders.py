"""The routers that are measured, each as the command that starts it in front of given replicas."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pagelet.bench.server import HOST, PAGELET, free_port

Command = Callable[[str, str, int, Sequence["Target"]], list[str]]
"""From program, policy, port and replicas."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A replica as a router's command line names it."""

    url: str
    kv_events: str
    """Endpoint to subscribe to."""
    block_size: int
    model: str


class RouterUnknown(ValueError):
    """No such router, or it is not installed; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """A router with a policy."""

    title: str
    program: str
    policy: str
    ready_path: str
    _command: Command

    def command(self, port: int, targets: Sequence[Target]) -> list[str]:
        """Starts it on a port of the loopback interface."""
        return self._command(self.program, self.policy, port, targets)


def _pagelet(program: str, policy: str, port: int, targets: Sequence[Target]) -> list[str]:
    replicas = [part for target in targets for part in ("--replica", target.url)]
    return [program, "router", *replicas, "--policy", policy, "--port", str(port)]


def _smg(program: str, policy: str, port: int, targets: Sequence[Target]) -> list[str]:
    urls = [target.url for target in targets]
    options = ("--policy", policy, "--host", HOST, "--port", str(port), "--log-level", "warn")
    # Its default port for metrics is fixed; 0 would be refused.
    return [
        program,
        "launch",
        *options,
        "--prometheus-port",
        str(free_port(port + 1)),
        "--worker-urls",
        *urls,
    ]


def _vllm(program: str, policy: str, port: int, targets: Sequence[Target]) -> list[str]:
    urls = [target.url for target in targets]
    options = ["--policy", policy, "--host", HOST, "--port", str(port), "--log-level", "warning"]
    options += ["--prometheus-port", str(free_port(port + 1))]
    if policy == "kv_aware":
        for target in targets:
            options += ["--kv-event-source", f"{target.url}={target.kv_events}"]
        options += ["--kv-event-block-size", str(targets[0].block_size)]
        options += ["--kv-event-model", targets[0].model]
    return [program, *options, "--worker-urls", *urls]


_KINDS: dict[str, tuple[str, str, Command]] = {
    "pagelet": (PAGELET, "/ready", _pagelet),
    "smg": ("smg", "/health", _smg),
    "vllm-router": ("vllm-router", "/health", _vllm),
}
"""Program, path that tells whether it is ready, command."""

DEFAULT = (
    "pagelet:prefix",
    "pagelet:round_robin",
    "smg:cache_aware",
    "smg:prefix_hash",
    "vllm-router:cache_aware",
    "vllm-router:kv_aware",
)


def parse_contender(text: str, folder: Path | None) -> Contender:
    """A router from `KIND:POLICY`; programs other than Pagelet's are in `folder`, or on the path.
    Raises `RouterUnknown`."""
    kind, _, policy = text.partition(":")
    if kind not in _KINDS or not policy:
        raise RouterUnknown(
            f"{text!r} is no router: give {', '.join(_KINDS)} and a policy, such as {DEFAULT[0]}"
        )
    program, ready_path, command = _KINDS[kind]
    if kind != "pagelet":
        found = shutil.which(program, path=None if folder is None else str(folder))
        if found is None:
            raise RouterUnknown(
                f"{program} is not installed: pip install {program} in a virtual environment, and "
                "give its folder of programs with --peers; or measure Pagelet's router alone: "
                f"--router {DEFAULT[0]}"
            )
        program = found
    return Contender(text, program, policy, ready_path, command)
